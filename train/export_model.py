"""Write a run as a folder of Marian's, M2M100's or NLLB's: `python -m train.export_model runs/mine --out folders/mine`.
$ python -m train.nmt --init runs/en-fr --data pairs.txt --out runs/mine
$ python -m train.export_model runs/mine --out folders/mine

RUN is an imported run, or one that goes on from it. It may also be a Transformer with subwords in Marian's form, which
`--corpus.tokenizer unigram --model.family transformer --model.positions halves` of `train.nmt` trains.

Then `transformers.AutoModelForSeq2SeqLM.from_pretrained("folders/mine")` loads the same weights.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from train.command_line.terminal import answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    return answer(lambda: tyro.cli(export, prog="python -m train.export_model", description=__doc__, args=arguments))


def export(run: Annotated[Positional[Path], arg(metavar="RUN")], out: Annotated[Path, arg(metavar="FOLDER")]) -> None:
    """Write the folder.

    Args:
        run: The run folder.
        out: The folder to write, a new one.
    """
    from train.runs.importing import export_pretrained

    export_pretrained(run, out)
    print(f"{out}: load it with AutoModelForSeq2SeqLM.from_pretrained and AutoTokenizer.from_pretrained")


if __name__ == "__main__":
    sys.exit(main())
