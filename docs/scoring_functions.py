"""Print the tables and draw the pictures of scoring_functions.md.

$ python docs/scoring_functions.py exercises          # the book's exercises, without training
$ python docs/scoring_functions.py compare            # train every attention with the seeds 0, 1 and 2
$ python docs/scoring_functions.py compare book --data fra.txt --attentions additive dot --out runs/book

Other options go to `train.nmt`. A comparison that was stopped goes on with the same command.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from sacrebleu.metrics import BLEU

from jax_attn import AdditiveAttention, DotProductAttention, show_alignments, show_heatmaps
from jax_attn.compiler import avoid_faults
from jax_attn.modules.attention import make_attention
from jax_attn.plots import make_figure, save
from jax_attn.settings import AttentionName
from train.data.batches import pad
from train.data.corpus import Alignment, Pair
from train.data.tokens import detokenize
from train.data.vocabulary import BOS, EOS
from train.runs.run_folder import RunFolder
from train.translating.metrics import alignment_counts, alignment_error_of, peaks
from train.translating.translator import load_model

DOCS = Path(__file__).parent
ATTENTIONS = get_args(AttentionName)
KINDS, LENGTHS = {"additive": "additive", "scaled_dot": "scaled dot product"}, (2, 6)
SUMS = {"sum": "w · (W_q q + W_k k)", "additive": "w · tanh(W_q q + W_k k)", "scaled_dot": "q · k / √D"}
SHAPES = {"a decoder's step": (64, 1, 14), "a text": (8, 128, 128)}  # batch, queries and keys
COSTS = ("dot", "scaled_dot", "sum", "bilinear", "multi_head", "gaussian", "additive")

# --- Every attention, trained -----------------------------------------------------------------------------------------


def train(folder, attention, seed, arguments):
    """Train one run, or go on with it, unless it is complete."""
    own = [*arguments, "--model.attention", attention, "--seed", str(seed), "--out", str(folder)]
    if not (folder / "summary.json").exists():
        again = ["--resume", str(folder)] if folder.exists() else own
        subprocess.run([sys.executable, "-m", "train.nmt", *again], check=True)


def read_test(folder):
    """Return the test pairs of a run, and the lines of test.jsonl."""
    records = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    links = [[frozenset(map(tuple, record.get(name, ()))) for name in ("sure", "possible")] for record in records]
    texts = [(" ".join(record["source"]), " ".join(record["reference"])) for record in records]
    return [Pair(*text, Alignment(*found)) for text, found in zip(texts, links, strict=True)], records


def has_links(records):
    """Whether a test set says which words belong together, and the model does too."""
    return all("sure" in record and "links" in record for record in records)


def bleu_counts(hypotheses, references):
    """Count what BLEU is computed from: lengths of both sides, matching n-grams and all n-grams, n = 1 … 4.

    `bleu_of` the sum of some rows is the BLEU of a corpus of those sentences.
    """
    bleu = BLEU(effective_order=True)  # only silences a warning about sentence scores, which are not used
    scores = [bleu.sentence_score(text, [known]) for text, known in zip(hypotheses, references, strict=True)]
    return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])


def bleu_of(counts):
    """Compute a corpus's BLEU from the sum of its `bleu_counts`, smoothed as in `score_texts`."""
    length, reference_length, *ngrams = counts.tolist()
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], length, reference_length, smooth_method="exp").score


SCORES = {"BLEU": (bleu_of, 1), "alignment error": (alignment_error_of, 3)}  # from counts, and the digits to write


def read_counts(folder):
    """Return, for each score, the counts [sentence, part] that it is computed from; no alignment error without gold."""
    pairs, records = read_test(folder)
    texts = [[detokenize(record[side]) for record in records] for side in ("translation", "reference")]
    counts = {"BLEU": bleu_counts(*texts)}
    if has_links(records):
        links = [set(map(tuple, record["links"])) for record in records]
        counts["alignment error"] = alignment_counts(links, [pair.alignment for pair in pairs])
    return counts


def bootstrap(counts, score, num_samples=2000):
    """Return the score of each seed, and [1 + samples]: its mean over the seeds, and that of the bootstrap's samples.

    A sample has as many seeds and sentences as the counts [seed, sentence, part], drawn with replacement. The same
    are drawn for every attention.
    """
    rng, (num_seeds, num_sentences, _) = np.random.default_rng(0), counts.shape
    seeds = rng.integers(num_seeds, size=(num_samples, num_seeds))
    times = rng.multinomial(num_sentences, np.full(num_sentences, 1 / num_sentences), size=num_samples)
    of_samples = [[score(parts) for parts in sample] for sample in np.einsum("rn,snp->rsp", times, counts)]
    by_seed = [score(parts) for parts in counts.sum(axis=1)]
    means = np.take_along_axis(np.array(of_samples), seeds, axis=1).mean(axis=1)
    return by_seed, np.array([np.mean(by_seed), *means])


def with_interval(values, digits):
    """Write the first value with the middle 95 % of the others: `96.5 [95.9, 97.0]`."""
    numbers = values[0], *np.quantile(values[1:], [0.025, 0.975])
    return "{} [{}, {}]".format(*(f"{number:.{digits}f}".replace("-", "−") for number in numbers))


def compare(folders, pictures):
    """Make the table and the pictures of trained attentions from their run folders, one for each seed."""
    first = next(iter(folders))
    rows = [("attention", *(f"{score}{of}" for score in SCORES for of in ("", f" − {first}'s")), "parameters")]
    found = {score: {} for score in SCORES}
    for name, of_seeds in folders.items():
        counts, cells = [read_counts(folder) for folder in of_seeds], []
        for score, (compute, digits) in SCORES.items():
            if score in counts[0]:
                by_seed, values = found[score][name] = bootstrap(np.array([of[score] for of in counts]), compute)
                base = found[score].get(first, (by_seed, values))[1]
                cells += [with_interval(values, digits), with_interval(values - base, digits)]
            else:
                cells += ["–", "–"]
        sizes = json.loads((of_seeds[0] / "summary.json").read_text(encoding="utf-8"))
        rows.append((name, *cells, f"{sizes['parameters']:,} ({sizes['attention_parameters']:,})"))
    draw_scores(found, list(folders), pictures / "scores.png")
    draw_attention(folders, pictures / "attention.png")
    return rows


def read_weights(run, pairs):
    """Feed the pairs to a run's model; return for each its weights [target, source], `<eos>` included."""
    model, params = load_model(run)
    forward, found = jax.jit(model.apply), []
    for start in range(0, len(pairs), 100):
        batch = pairs[start : start + 100]
        sources, lens = pad([[*run.source.encode(p.source), EOS] for p in batch], run.max_source_len + 1)
        targets, _ = pad([[BOS, *run.target.encode(p.target)] for p in batch], run.max_target_len)
        weights = np.asarray(forward(params, sources, targets, lens)[1])
        sizes = [(len(p.target.split()) + 1, len(p.source.split()) + 1) for p in batch]
        found += [w[:rows, :columns] for w, (rows, columns) in zip(weights, sizes, strict=True)]
    return found


def bilinear_ranks(folders, name="decoder.attention.W.weight"):
    """Measure the alignment error of bilinear attention if W keeps only its largest singular values."""
    found = {}
    for folder in folders:
        run, (pairs, _) = RunFolder(folder).load(), read_test(folder)
        left, values, right = np.linalg.svd(run.weights[name])
        for rank in [*(2**i for i in range(20) if 2**i < len(values)), len(values)]:
            kept = replace(run, weights={**run.weights, name: (left[:, :rank] * values[:rank]) @ right[:rank]})
            links = [peaks(w, w.shape[1] - 1, w.shape[0] - 1) for w in read_weights(kept, pairs)]
            error = alignment_error_of(alignment_counts(links, [p.alignment for p in pairs]).sum(axis=0))
            found.setdefault(rank, []).append([(values[:rank] ** 2).sum() / (values**2).sum(), error])
    means = {rank: np.mean(rows, axis=0) for rank, rows in found.items()}
    head = ("singular values kept", "share of ‖W‖²", "alignment error")
    return [head, *((f"{rank}", f"{share:.0%}", f"{error:.3f}") for rank, (share, error) in means.items())]


def steps_back(pair):
    """Count the target words whose source word stands before that of the target word before."""
    first = {j: min(i for i, k in pair.alignment.sure if k == j) for _, j in pair.alignment.sure}
    return int((np.diff([first[j] for j in sorted(first)]) < 0).sum())


def draw_attention(folders, path):
    """Draw the weights of every attention for the short test pair whose words change their order most."""
    runs = [RunFolder(of_seeds[0]).load() for name, of_seeds in folders.items() if name != "none"]
    short = [p for p in read_test(runs[0].folder)[0] if max(len(p.source.split()), len(p.target.split())) <= 7]
    pair = max(short, key=steps_back)
    words = (*pair.source.split(), "<eos>"), (*pair.target.split(), "<eos>")
    links = {"sure": pair.alignment.sure, "possible": pair.alignment.possible - pair.alignment.sure}
    links = {name: [cells] * len(runs) for name, cells in links.items() if cells}
    examples, titles = [(*words, read_weights(run, [pair])[0]) for run in runs], [run.model.attention for run in runs]
    save(show_alignments(examples, 4, titles=titles, links=links, ylabel="reference"), path)


def draw_scores(found, names, path):
    """Draw each score with its interval. One that is far from the best is written at the edge."""
    figure = make_figure(figsize=(9.2, 0.36 * len(names) + 1.2), layout="constrained")
    for axis, score, edge in zip(figure.subplots(1, 2, sharey=True), SCORES, (0, 1), strict=True):
        best = (min if edge else max)((values[0] for _, values in found[score].values()), default=0)
        for name, (by_seed, values) in found[score].items():
            y = -names.index(name)
            if abs(values[0] - best) > (0.15 if edge else 15):
                text, align = (f"{values[0]:.3f} →", "right") if edge else (f"← {values[0]:.1f}", "left")
                axis.text(edge, y, text, transform=axis.get_yaxis_transform(), ha=align, va="center", color="tab:blue")
            else:
                axis.plot(np.quantile(values[1:], [0.025, 0.975]), [y, y], "tab:blue", linewidth=2)
                axis.plot(by_seed, [y] * len(by_seed), "|", color="0.35", markersize=9)
                axis.plot(values[0], y, "o", color="tab:blue")
        axis.set(xlabel=f"{score} ({'lower' if edge else 'higher'} is better)", ylim=(0.6 - len(names), 0.6))
        axis.set_yticks(range(0, -len(names), -1), names)
        axis.grid(axis="x", color="0.9")
    figure.supxlabel("dot: mean over the seeds; bar: 95 % interval; ticks: single seeds", fontsize="small")
    save(figure, path)


# --- The exercises of the book ----------------------------------------------------------------------------------------


def example_keys():
    """Return the keys of the book's example, which are all equal, and random ones."""
    random = jax.random.normal(jax.random.key(2), (2, 10, 2))
    return {"ones": jnp.ones((2, 10, 2)), "normal": random, "normal × 10": 10 * random}


@jax.jit
def attend(keys):
    """Return the weights [2, 1, 10] of both attentions in the book's example, and the additive one's w."""
    values, lens = jnp.tile(jnp.arange(40.0).reshape(1, 10, 4), (2, 1, 1)), jnp.array(LENGTHS)
    additive, dot = AdditiveAttention(num_hiddens=8), DotProductAttention()
    long, short = (jax.random.normal(jax.random.key(seed), (2, 1, size)) for seed, size in ((0, 20), (3, 2)))
    params = additive.init(jax.random.key(1), long, keys, values, lens)
    found = additive.apply(params, long, keys, values, lens)[1], dot.apply({}, short, keys, values, lens)[1]
    return found, params["params"]["w_v"]["kernel"]


def example_weights(keys):
    """Return the weights [2, 10] of both attentions in the book's example, and exp(2‖w‖₁) of the additive one."""
    found, w = attend(keys)
    bound = math.exp(2 * float(jnp.abs(w).sum()))
    return [np.asarray(weights, float)[:, 0] for weights in found], bound


def changed_keys(pictures):
    """Exercise 1: compare the weights of both attentions for each kind of keys."""
    rows, grid = [("keys", "additive: weights of the 6", "scaled dot product", "largest difference")], []
    for name, keys in example_keys().items():
        weights, _ = example_weights(keys)
        texts = (" ".join(f"{w:.2f}" for w in of[1, :6]) for of in weights)
        rows.append((name, *texts, f"{np.abs(weights[0] - weights[1]).max():.2f}"))
        grid.append(weights)
    figure = show_heatmaps(np.array(grid), "key", "", list(KINDS.values()), (8.0, 3.0))
    for axis, row in zip(figure.axes[::2], rows[1:], strict=False):
        axis.set_ylabel(f"keys:\n{row[0]}", rotation=0, ha="right", va="center", labelpad=16)
        axis.set_yticks(range(2), [f"length {n}" for n in LENGTHS])
    save(figure, pictures / "changed_keys.png")
    return rows


def loss(module, **options):
    """Return a function whose gradients are measured."""
    return lambda params, *inputs: (module.apply(params, *inputs, **options)[0] ** 2).sum()


def vector_sum(pictures, size=16):
    """Exercise 3: measure how much the weights of five queries differ, and the largest gradient of a query."""
    rows, shown = [("score", "difference between queries", "largest gradient of a query")], []
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = [jax.random.normal(key, (1, length, size)) for key, length in zip(keys, (5, 8, 8), strict=True)]
    for name, label in SUMS.items():
        module = make_attention(name, size)
        params = jax.jit(module.init)(jax.random.key(1), *inputs)
        weights = np.asarray(jax.jit(module.apply)(params, *inputs)[1])
        gradient = jnp.abs(jax.jit(jax.grad(loss(module), argnums=1))(params, *inputs)).max()
        rows.append(
            (label, *(f"{x:.2f}" if x >= 0.005 else f"{x:.0e}" for x in (np.ptp(weights, axis=1).max(), gradient)))
        )
        shown.append(weights[0])
    save(
        show_heatmaps(np.array([shown]), "key", "query", ["vector sum", *KINDS.values()], (8.0, 2.4)),
        pictures / "vector_sum.png",
    )
    return rows


def cost(size=96, shapes=SHAPES, seconds=1.0):
    """Measure the milliseconds for the gradients of each attention; on a busy machine they mean little."""
    rows = [("attention", *(f"{name}: {b} × {q} × {k}" for name, (b, q, k) in shapes.items()))]
    for name in COSTS:
        module, times = make_attention(name, size), []
        for batch, *lengths in shapes.values():
            inputs = [jax.random.normal(jax.random.key(n), (batch, n, size)) for n in lengths]
            params, of = module.init(jax.random.key(1), *inputs, inputs[1]), loss(module, return_weights=False)
            gradients = jax.jit(jax.grad(lambda p, q, k, of=of: of(p, q, k, k), argnums=(0, 1, 2)))
            jax.block_until_ready(gradients(params, *inputs))  # compiles
            shortest, end = math.inf, time.perf_counter() + seconds
            while (start := time.perf_counter()) < end:
                jax.block_until_ready(gradients(params, *inputs))
                shortest = min(shortest, time.perf_counter() - start)
            times.append(f"{1e3 * shortest:.2f} ms")
        rows.append((name, *times))
    return rows


def as_markdown(rows):
    """Write a table with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    cells.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def main():
    """Run the exercises or the comparison; print the tables and draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exercises", "compare"])
    parser.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--out", type=Path, default=Path("runs/scores"), help="the folder for runs and pictures")
    options, arguments = parser.parse_known_args()
    avoid_faults()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "exercises":
        tables = [changed_keys(options.out), vector_sum(options.out), cost()]
    else:
        folders = {name: [options.out / f"{name}-{seed}" for seed in options.seeds] for name in options.attentions}
        for name, seed in ((name, seed) for seed in options.seeds for name in options.attentions):
            train(options.out / f"{name}-{seed}", name, seed, arguments)
        tables = [compare(folders, options.out)]
        if "bilinear" in folders and has_links(read_test(folders["bilinear"][0])[1]):
            tables.append(bilinear_ranks(folders["bilinear"]))
    print(*map(as_markdown, tables), sep="\n\n")


if __name__ == "__main__":
    main()
