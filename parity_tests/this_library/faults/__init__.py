"""Planted faults: mistakes that people make, made on purpose, to see whether the comparison notices them.

fault         the record of one, whether its case notices it, and the ways to change a function
table         mistakes in functions, modules, models and search, in either framework
by_hand       those of them that need code of their own
in_training   mistakes in the optimiser, which no forward and backward pass can show
"""

from parity_tests.this_library.faults.fault import Fault
from parity_tests.this_library.faults.in_training import TRAINING_FAULTS
from parity_tests.this_library.faults.table import CASE_FAULTS

FAULTS: tuple[Fault, ...] = (*CASE_FAULTS, *TRAINING_FAULTS)

__all__ = ["CASE_FAULTS", "FAULTS", "TRAINING_FAULTS", "Fault"]
