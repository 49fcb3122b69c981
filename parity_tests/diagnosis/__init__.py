"""When two programs differ: where they part, what the difference looks like, and the mistake that explains it.

taps       what lies between inputs and outputs, recorded
bisect     the first tensor that differs, in the forward or in the backward pass
updates    the first parameter in which two optimisers differ
symptoms   what a wrong tensor looks like
traps      known mistakes, tried out as explanations
"""
