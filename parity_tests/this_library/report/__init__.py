"""The report of `python -m parity_tests`.

tables      the results as rows, printed or for a program
page        the same as one HTML page
drift_plot  the picture of float32 drift
"""
