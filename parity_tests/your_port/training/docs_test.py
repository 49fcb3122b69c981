"""The documentation's own trainings, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/training_parity.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
OUTPUTS = re.findall(r"```\n\n```\n(.*?)\n```", TEXT, re.DOTALL)


@pytest.mark.slow
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    mended = EXAMPLES["trainings.py"]
    for wrong, right in (
        ("optax.adamw(SCHEDULE)", "optax.adamw(SCHEDULE, weight_decay=1e-2)"),
        ("optax.clip_by_global_norm(1.0)", "optim.clip_by_global_norm(1.0, 1e-6)"),
        ("import optax\n", "import optax\nfrom jax_attn import optim\n"),
    ):
        assert wrong in mended
        mended = mended.replace(wrong, right)
    both = f"{EXAMPLES['trainings.py']}\n{mended}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", both]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    parted, agreed, *rest = done.stdout.strip().split("re-synchronised: ")[1:]
    assert "re-synchronised: " + parted.strip() == OUTPUTS[0]
    assert agreed.startswith("the trainings agree for 20 steps")
    assert not rest
