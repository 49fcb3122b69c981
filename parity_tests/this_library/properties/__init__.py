"""Properties that hold for any numbers, checked on many drawn cases in both frameworks.

subjects     the functions, modules and models that are checked, and numbers drawn for them
properties   the properties: masking equals deleting, a batch equals its rows, NaN in padding reaches nothing, …

`python -m parity_tests.this_library.properties` checks them on 100,000 new cases.
"""
