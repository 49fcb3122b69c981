"""The harness as somebody else uses it: the documentation's own example, in a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs/parity.md").read_text("utf-8"), re.DOTALL))


def run_pytest(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\npython_files = *_test.py\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "160"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_missing_hidden_bias_of_nnx_is_found_and_named(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, EXAMPLE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gradient of bias_hh: error 1 exceeds 1e-12" in done.stdout
    assert re.search(r"GRUCell \| random \| float64: the forward pass parts at result: error 0\.\d+", done.stdout)
    explained = re.findall(r"explained by: (.*)", done.stdout)
    assert explained == ["bias_hh is missing in JAX"]
    assert re.search(r"GRUCell\s+float64.*FAILED", done.stdout)


def test_a_port_with_the_bias_passes_and_its_table_is_printed(tmp_path: Path) -> None:
    port, rest = re.split(r"\n\nrng", EXAMPLE["gru_test.py"])
    port = (
        port[: port.index("    graph, state")]
        + "    projected = inputs['input'] @ weights['weight_ih'].T + weights['bias_ih']\n"
        + "    return gru_step(inputs['hx'], projected, weights['weight_hh'].T, weights['bias_hh'])[1]\n"
    )
    source = "from jax_attn import gru_step\n" + port + "\n\nrng" + rest
    done = run_pytest(tmp_path, {**EXAMPLE, "gru_test.py": source})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"GRUCell\s+float64.*agrees", done.stdout)
    assert re.search(r"GRUCell\s+float32.*agrees", done.stdout)
