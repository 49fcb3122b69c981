"""Import a pretrained translator: `python -m train.import_model SOURCE --out runs/en-fr`.
$ python -m train.import_model Helsinki-NLP/opus-mt-en-fr --out runs/en-fr
$ python -m train.import_model folders/opus-mt-en-fr --out runs/en-fr
$ python -m train.translate runs/en-fr "The cat sleeps."
$ python -m train.import_model facebook/nllb-200-distilled-600M --out runs/nllb
$ python -m train.translate runs/nllb --source-language eng_Latn --target-language fra_Latn "The cat sleeps."

SOURCE is a folder with a model of Marian, M2M100, NLLB or CTranslate2, or the name of one on the Hugging Face hub,
which is downloaded once (needs huggingface_hub). The run folder is used as one that `python -m train.nmt` wrote: to
translate, to evaluate, and with `python -m train.nmt --init runs/en-fr --data pairs.txt` to go on training.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from train.command_line.terminal import answer
from train.setting import ConfigError, without_default


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    return answer(lambda: tyro.cli(run, prog="python -m train.import_model", description=__doc__, args=arguments))


def run(
    source: Annotated[Positional[str], arg(metavar="SOURCE")],
    out: Annotated[Path, arg(metavar="FOLDER")],
    revision: Annotated[str | None, without_default("NAME")] = None,
    moses: bool = True,
) -> None:
    """Find the model, and make the run folder of it.

    Args:
        source: A folder, or a name on the hub.
        out: The run folder, a new one.
        revision: A branch, tag or commit on the hub.
        moses: Normalise punctuation as in the model's training, by sacremoses.
    """
    from train.machine.devices import start_jax
    from train.machine.whole_files import read_json
    from train.runs.importing import import_pretrained

    folder, origin = Path(source), {"source": source}
    if not folder.is_dir():
        from train.data.hub import download

        folder, origin["revision"] = download(source, revision)
    elif revision is not None:
        raise ConfigError(f"--revision is for a name on the hub, and {source} is a folder")
    start_jax()
    made = import_pretrained(folder, out, origin=origin, moses=moses)
    made_from, saved = read_json(made.path / "origin.json"), made.load()
    codes = " --source-language CODE --target-language CODE" * bool(saved.source.languages)
    print(f"licence: {made_from['licence'] or 'none is named; ask its makers'}")
    print(f"{made.path}: translate with `python -m train.translate {made.path}{codes}`")


if __name__ == "__main__":
    sys.exit(main())
