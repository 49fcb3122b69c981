"""All planted faults: some forty mistakes that people make, in either framework's code."""

from parity_tests.fault import Fault
from parity_tests.jax_faults import JAX_FAULTS
from parity_tests.torch_faults import TORCH_FAULTS

FAULTS: tuple[Fault, ...] = (*JAX_FAULTS, *TORCH_FAULTS)
