"""Explain a difference between two programs by a known mistake.

symptoms         what a wrong tensor looks like
cause            the records: a cause and what it explains, mistakes that would not be seen
find             known mistakes tried as explanations, and confirmed on fresh draws of weights and inputs
next_step        where no mistake fits, the step of PyTorch that JAX does not make
suspects         what a mistake is tried on
hypotheses       which mistakes may have been made: those of inputs, results, activations, weights and gradients
mistakes         those of functions, as a table: to add a mistake, add a row
wrong_functions  those of the table that are more than an expression
planting         a mistake made in PyTorch on purpose, in a submodule or in the whole program
blind            the known mistakes that given inputs and weights do not show
"""
