import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> tuple[Path, dict]:
    """Train a small model for a short time. Return its folder and summary."""
    from train import nmt

    folder = tmp_path_factory.mktemp("small") / "run"
    options = "--corpus.train 600 --corpus.valid 16 --corpus.test 16 --corpus.min-freq 3 --epochs 3 "
    options += "--model.num-hiddens 32 --model.embed-size 16 --search.batch-size 16"
    assert nmt.main([*options.split(), "--out", str(folder)]) == 0
    return folder, json.loads((folder / "summary.json").read_text(encoding="utf-8"))
