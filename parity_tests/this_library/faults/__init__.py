"""Planted faults: mistakes that people make, made on purpose, to see whether the comparison notices them.

of_the_table  every mistake of the harness's own table, planted in torch_ref
by_hand       mistakes in jax_attn, some of which only this library can have, and in its optimiser
fault         the record of one of these, whether its case notices it, and the ways to change a function
"""

from parity_tests.this_library.faults.by_hand import CASE_FAULTS, TRAINING_FAULTS
from parity_tests.this_library.faults.fault import Fault
from parity_tests.this_library.faults.of_the_table import plant_table

FAULTS: tuple[Fault, ...] = (*CASE_FAULTS, *TRAINING_FAULTS)

__all__ = ["CASE_FAULTS", "FAULTS", "TRAINING_FAULTS", "Fault", "plant_table"]
