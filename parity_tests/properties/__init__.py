"""What holds whatever the numbers: asked of many drawn cases, in both frameworks.

subjects     what is asked: functions, modules and models, and the shapes they are asked at
answers      a subject run in either framework
properties   what has to hold: masking equals deleting, a batch equals its rows, NaN in padding reaches nothing, …
trials       the properties on many cases, counted; `python -m parity_tests.properties`
"""
