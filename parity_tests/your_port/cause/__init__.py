"""Explain a difference between two programs by a known mistake.

symptoms         what a wrong tensor looks like
cause            the records: a cause and what it explains, mistakes that would not be seen
find             the search for the known mistakes that explain a difference
trial            a mistake tried as an explanation, and confirmed on fresh draws of weights and inputs
several          several mistakes at once, one after the other
steps            which steps of PyTorch JAX makes, too, and the first that it does not make
suspects         what a mistake is tried on
hypotheses       which mistakes may have been made: those of inputs, results, activations and weights
gradients        those that change gradients alone
mistakes         those of functions, as a table: to add a mistake, add a row
wrong_functions  those of the table that are more than an expression
planting         a mistake made in PyTorch on purpose, in a submodule or in the whole program
blind            the known mistakes that given inputs and weights do not show
"""
