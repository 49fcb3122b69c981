"""What both frameworks must refuse: wrong shapes, ranks, dtypes, settings and values.

functional   of functions and attention modules
models       of networks, models and searches
"""
