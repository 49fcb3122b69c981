"""The harness as somebody else uses it: the documentation's own example, in a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs/parity.md").read_text("utf-8"), re.DOTALL))


def mended() -> str:
    """Return the example with another port, which has the bias, under another name."""
    port, rest = re.split(r"\n\nrng", EXAMPLE["gru_test.py"].replace('"GRUCell"', '"Mended"'))
    port = (
        port[: port.index("    graph, state")]
        + "    projected = inputs['input'] @ weights['weight_ih'].T + weights['bias_ih']\n"
        + "    return gru_step(inputs['hx'], projected, weights['weight_hh'].T, weights['bias_hh'])[1]\n"
    )
    return "from jax_attn import gru_step\n" + port + "\n\nrng" + rest


def test_the_missing_hidden_bias_of_nnx_is_found_and_named_and_a_port_with_the_bias_passes(tmp_path: Path) -> None:
    files = {**EXAMPLE, "mended_test.py": mended(), "pytest.ini": "[pytest]\npython_files = *_test.py\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "160"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "gradient of bias_hh: error 1 exceeds 1e-12" in done.stdout
    assert re.search(r"GRUCell \| random \| float64: the forward pass differs at result: error 0\.\d+", done.stdout)
    explained = re.findall(r"explained by: (.*)", done.stdout)
    assert explained == ["bias_hh is missing in JAX"]
    assert re.search(r"GRUCell\s+float64.*FAILED", done.stdout)
    assert re.search(r"Mended\s+float64.*agrees", done.stdout)
    assert re.search(r"Mended\s+float32.*agrees", done.stdout)
