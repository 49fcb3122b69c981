"""Statements that hold for any numbers, checked on many drawn cases in both frameworks.

subjects     the functions, modules and models that are checked, and the letters of their axes
answers      the outputs and gradients of a subject in either framework
properties   the statements: masking equals deleting, a batch equals its rows, NaN in padding reaches nothing, …
trials       the properties on many cases, counted; `python -m parity_tests.properties`
"""
