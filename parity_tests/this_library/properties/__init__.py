"""Properties of jax_attn that hold for any numbers: masking equals deleting, a batch equals its rows, …

subjects         the functions, modules and models that are checked, and how they run
properties_test  the properties, and a fault that breaks each; hypothesis draws their cases

    python -m pytest -n 4 -m "" parity_tests/this_library/properties --hypothesis-profile many

checks them on 100,000 new cases.
"""
