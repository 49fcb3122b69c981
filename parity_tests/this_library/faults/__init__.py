"""Planted faults: mistakes that people make, made on purpose, to see whether the comparison notices them.

in_torch_ref  every mistake of the harness's own table
in_jax_attn   mistakes some of which only this library can have, and those in its optimiser
fault         the record of one of these, whether its case notices it, and the ways to change a function
"""

from parity_tests.this_library.faults.fault import Fault
from parity_tests.this_library.faults.in_jax_attn import CASE_FAULTS, TRAINING_FAULTS
from parity_tests.this_library.faults.in_torch_ref import plant_table

FAULTS: tuple[Fault, ...] = (*CASE_FAULTS, *TRAINING_FAULTS)

__all__ = ["CASE_FAULTS", "FAULTS", "TRAINING_FAULTS", "Fault", "plant_table"]
