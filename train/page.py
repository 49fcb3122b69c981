"""Show the attention of any encoder-decoder model on a page: `python -m train.page FILE.npz|.json --out PAGE.html`.
$ python -m train.page weights.npz --out page.html

FILE holds, for each sentence (T target tokens, S source tokens; each row of weights sums to 1):

- source: the S source tokens, a list of texts.
- target: the T target tokens. Of a decoder each is the token that the step writes, and its row what the step looks at.
- weights: the attention of the target to the source, [layers, heads, T, S].
- source_weights (optional): the self-attention of the source, [layers, heads, S, S].
- target_weights (optional): the self-attention of the target, [layers, heads, T, T].
- read (optional): the T tokens that the decoder reads, <bos> first, which name the columns of target_weights.

A .json file holds an object with these keys, or a list of them. An .npz file, as of numpy.savez, holds arrays with
these names or, of several sentences, 0.source, 0.target, 0.weights, 1.source and so on.
"""

# Importing JAX takes a second, and a wrong option should be reported at once. So JAX is imported where it is needed.
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from train.command_line.terminal import answer
from train.command_line.translate_options import PAGES, refusals
from train.setting import ConfigError


@dataclass(frozen=True)
class Options:
    """The command line; `--help` shows it in this order."""

    file: Annotated[Positional[Path], arg(metavar="FILE", help_behavior_hint="")]
    """The arrays, .npz or .json."""
    out: Annotated[Path, arg(metavar="PAGE.html", help_behavior_hint="")]
    """The page to write: one file that needs no network."""
    force: bool = False
    """Let --out overwrite a file of another kind."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    program = "python -m train.page"
    return answer(lambda: run(tyro.cli(Options, prog=program, description=__doc__, args=arguments)))


def run(options: Options) -> None:
    """Read the arrays and write the page."""
    if wrong := refusals("--out", options.out, PAGES, options.file, options.force):
        raise ConfigError("; ".join(wrong))

    from train.translating.page.arrays import read_arrays
    from train.translating.page.page import MAX_WEIGHTS, page_of_arrays, save

    sentences = read_arrays(options.file)
    count = sum(each.weights.size for sentence in sentences for each in sentence.maps)
    if count > MAX_WEIGHTS:
        raise ConfigError(f"{options.file} has {count:,} weights; a page of more than {MAX_WEIGHTS:,} would be slow")
    save(page_of_arrays(options.file.name, sentences), options.out)


if __name__ == "__main__":
    sys.exit(main())
