import json
from pathlib import Path

import pytest

OPTIONS = [
    *(
        "--corpus.train",
        "600",
        "--corpus.valid",
        "16",
        "--corpus.test",
        "16",
        "--corpus.min-freq",
        "3",
        "--epochs",
        "3",
    ),
    *("--model.num-hiddens", "32", "--model.embed-size", "16", "--search.batch-size", "16"),
]
"""Of a small training."""


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> tuple[Path, dict]:
    """Train a small model for a short time. Return its folder and summary."""
    from train import nmt

    folder = tmp_path_factory.mktemp("small") / "run"
    assert nmt.main([*OPTIONS, "--out", str(folder)]) == 0
    return folder, json.loads((folder / "summary.json").read_text(encoding="utf-8"))
