"""Import a pretrained translator: `python -m train.import_model SOURCE --out runs/en-fr`.
$ python -m train.import_model Helsinki-NLP/opus-mt-en-fr --out runs/en-fr
$ python -m train.import_model folders/opus-mt-en-fr --out runs/en-fr
$ python -m train.translate runs/en-fr "The cat sleeps."

SOURCE is a folder with a Marian model of the Hugging Face hub, or its name there, which is downloaded once (needs
huggingface_hub). The run folder is used as one that `python -m train.nmt` wrote: to translate, to evaluate, and with
`python -m train.nmt --init runs/en-fr --data pairs.txt` to go on training.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from train.command_line.terminal import answer
from train.setting import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m train.import_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="SOURCE", help="a folder, or a name on the hub")
    parser.add_argument("--out", metavar="FOLDER", required=True, type=Path, help="the run folder, a new one")
    parser.add_argument("--revision", metavar="NAME", help="a branch, tag or commit on the hub")
    parser.add_argument(
        "--no-moses", dest="moses", action="store_false", help="leave punctuation as it is, without sacremoses"
    )
    options = parser.parse_args(arguments)
    return answer(lambda: run(**vars(options)))


def run(source: str, out: Path, revision: str | None, moses: bool) -> None:
    """Find the model, and make the run folder of it."""
    from train.machine.devices import start_jax
    from train.runs.importing import import_pretrained

    folder, origin = Path(source), {"source": source}
    if not folder.is_dir():
        from train.data.hub import download

        folder, origin["revision"] = download(source, revision)
    elif revision is not None:
        raise ConfigError(f"--revision is for a name on the hub, and {source} is a folder")
    start_jax()
    made = import_pretrained(folder, out, origin=origin, moses=moses)
    print(f"{made.path}: translate with `python -m train.translate {made.path}`")


if __name__ == "__main__":
    sys.exit(main())
