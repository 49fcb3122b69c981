"""All planted faults: mistakes that people make, in either framework's code and in the optimiser."""

from parity_tests.fault import Fault
from parity_tests.jax_faults import JAX_FAULTS
from parity_tests.torch_faults import TORCH_FAULTS
from parity_tests.training_faults import TRAINING_FAULTS, TrainingFault

FAULTS: tuple[Fault | TrainingFault, ...] = (*JAX_FAULTS, *TORCH_FAULTS, *TRAINING_FAULTS)
