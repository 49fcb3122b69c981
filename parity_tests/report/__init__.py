"""The report of `python -m parity_tests`.

work        the tasks of a report, shared by all cores
tables      their results as rows, printed or for a program
page        the same as one HTML page
drift_plot  the picture of float32 drift
"""
