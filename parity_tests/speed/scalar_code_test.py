import pytest

from parity_tests.speed.scalar_code import compile_step, scalar_kernels


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "count"), [("", 0), ("--xla_backend_optimization_level=0", 5)])
def test_a_training_step_s_functions_are_computed_on_vectors_and_scalar_code_is_found(tmp_path, flags, count):
    compile_step("vocabulary 500", tmp_path, flags)
    assert (len(scalar_kernels(tmp_path)) > count) == bool(count)
