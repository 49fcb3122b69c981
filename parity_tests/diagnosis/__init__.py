"""Explain a difference between two programs.

bisect     the first tensor that differs, in the forward or in the backward pass
updates    the first parameter in which two optimisers differ
symptoms   what a wrong tensor looks like
traps      known mistakes, tried out as explanations
"""
