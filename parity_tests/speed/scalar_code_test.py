from parity_tests.speed.scalar_code import compile_step, scalar_kernels


def test_a_training_step_s_arithmetic_is_on_vectors(tmp_path):
    compile_step("w1", tmp_path)
    assert len(list(tmp_path.glob("*.ir-with-opt.ll"))) > 20
    assert scalar_kernels(tmp_path) == {}


def test_scalar_code_is_found(tmp_path):
    compile_step("w1", tmp_path, "--xla_backend_optimization_level=0")
    assert len(scalar_kernels(tmp_path)) > 20
