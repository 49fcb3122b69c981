"""Write a run as Marian's folder: `python -m train.export_model runs/mine --out folders/mine`.
$ python -m train.nmt --init runs/en-fr --data pairs.txt --out runs/mine
$ python -m train.export_model runs/mine --out folders/mine

`transformers.MarianMTModel.from_pretrained("folders/mine")` then loads the same weights. RUN is an imported run, one
that goes on from it, or one of subwords with a Transformer in Marian's form:

$ python -m train.nmt --corpus.tokenizer unigram --model.family transformer --model.positions halves --out runs/mine
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from train.command_line.terminal import answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m train.export_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the run folder")
    parser.add_argument("--out", metavar="FOLDER", required=True, type=Path, help="the folder to write, a new one")
    options = parser.parse_args(arguments)
    return answer(lambda: run(**vars(options)))


def run(run: Path, out: Path) -> None:
    """Write the folder."""
    from train.runs.importing import export_pretrained

    export_pretrained(run, out)
    print(f"{out}: load it with MarianMTModel.from_pretrained and MarianTokenizer.from_pretrained")


if __name__ == "__main__":
    sys.exit(main())
