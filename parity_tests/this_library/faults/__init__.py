"""Planted faults: mistakes that people make, made on purpose, to see whether the comparison notices them.

fault         the record of one, and whether its case notices it
in_jax        mistakes in jax_attn
in_torch      mistakes in torch_ref: the comparison must notice a wrong reference as well as a wrong port
in_training   mistakes in the optimiser, which no forward and backward pass can show
"""

from parity_tests.this_library.faults.fault import Fault
from parity_tests.this_library.faults.in_jax import JAX_FAULTS
from parity_tests.this_library.faults.in_torch import TORCH_FAULTS
from parity_tests.this_library.faults.in_training import TRAINING_FAULTS

FAULTS: tuple[Fault, ...] = (*JAX_FAULTS, *TORCH_FAULTS, *TRAINING_FAULTS)

__all__ = ["FAULTS", "JAX_FAULTS", "TORCH_FAULTS", "TRAINING_FAULTS", "Fault"]
