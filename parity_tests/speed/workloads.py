"""The registry: what is timed, by whom, and which ratios are read off it."""

from collections.abc import Mapping

from parity_tests.speed import recurrent
from parity_tests.speed.growth import GROWTH_WORKLOADS
from parity_tests.speed.translation import BEAM, SENTENCES, draw_training, search_needs, training_needs
from parity_tests.speed.workload import Agreement, Contestant, Ratio, Workload

WITHOUT = "without attention"
"""Ours at the same widths, each step's context the encoder's final state."""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
"""What glibc's allocator is told so that PyTorch's large tensors are not given back and zeroed anew at every step."""

# A: attention alone


def _jax(name: str, function: str, inputs: str, **settings: object) -> Contestant:
    return Contestant(name, "jax_functions:build", {"function": function, "inputs": inputs, **settings})


def _torch(name: str, function: str, inputs: str, **settings: object) -> Contestant:
    settings = {"function": function, "inputs": inputs, **settings}
    return Contestant(name, "torch_functions:build", settings, compiles_cpp=bool(settings.get("compiled")))


def _additive(direction: str) -> Workload:
    """B = 8, Q = K = 512, H = 128. Limit: a tanh for each of the B·Q·K·H terms, and as many again for the gradient,
    which must not keep them; code that computes the sum without a tanh can pass it."""
    backward = {"backward": direction == "backward"}
    ours, inputs = "case additive_score", "additive"
    terms = 8 * 512 * 512 * 128
    return Workload(
        f"additive_{direction}",
        "call",
        (
            _jax("ours", ours, inputs, **backward),
            _torch("seed", ours, inputs, **backward),
            _torch("compiled", "additive_score", inputs, compiled=True, **backward),
            _jax("naive jnp", "naive additive", inputs, **backward),
        ),
        Agreement(
            1e-4, why="PyTorch's gradient of w_v, a sum of two million terms, is 4e-5 from that in float64; ours 4e-7"
        ),
        {"tanh": terms * (2 if direction == "backward" else 1)},
        rounds=5,
    )


def _dot(direction: str) -> Workload:
    """B = 8, 8 heads, L = 1024, D = 64. Limit: the products, two forward and five more backward (of the scores again,
    of the weights' gradient, and those of queries, keys and values)."""
    backward = {"backward": direction == "backward"}
    inputs, product = "dot product", 2 * 8 * 8 * 1024 * 1024 * 64
    return Workload(
        f"dot_{direction}",
        "call",
        (
            _jax("ours", "case DotProductAttention (F.scaled_dot_product_attention)", inputs, **backward),
            _torch("seed", "case DotProductAttention (jax.nn.dot_product_attention)", inputs, **backward),
            _torch("SDPA", "case DotProductAttention (F.scaled_dot_product_attention)", inputs, **backward),
            _jax("jax.nn", "case DotProductAttention (jax.nn.dot_product_attention)", inputs, **backward),
        ),
        Agreement(2e-5),
        {"gemm": product * (7 if direction == "backward" else 2)},
        rounds=5,
    )


SOFTMAX = Workload(
    "masked_softmax",
    "call",
    (
        _jax("ours", "case masked_softmax", "softmax"),
        _torch("seed", "case masked_softmax", "softmax"),
        _torch("tuned", "masked_softmax", "softmax"),
        _torch("compiled", "masked_softmax", "softmax", compiled=True),
        _jax("naive jnp", "naive softmax", "softmax"),
    ),
    limit={"copy": 2 * 4 * 8 * 512 * 512},
    rounds=11,
)
"""Scores (8, 512, 512) with a length each. Limit: each number read once and written once."""

RECURRENT = Workload(
    "recurrent",
    "call",
    (
        Contestant("ours", "jax_recurrent:build", {"module": "ours"}),
        Contestant("seed", "torch_recurrent:build"),
        Contestant("Flax", "jax_recurrent:build", {"module": "Flax"}),
    ),
    Agreement(2e-5),
    recurrent.needs(),
    rounds=5,
)
"""W2's encoder without its embedding: an LSTM of two layers, 256 → 512, 64 sentences of 30, forward and backward."""

# W1, W2, J: training


def _train(name: str, rounds: int, *, tokens: bool = False) -> Workload:
    """A unit is a step, or of `tokens` a target token that counts; JoeyNMT's model is not a book's, and has no seed.

    Limit: see `translation.training_needs`.
    """
    groups, settings = draw_training(name), {"translator": name}
    steps = sum(len(group.sources) for group in groups)
    units = sum(group.labels for group in groups) if tokens else steps
    limit = {ceiling: amount * steps / units for ceiling, amount in training_needs(name).items()}
    tuned = {**settings, "kind": "tuned"}
    ours = [Contestant("ours", "jax_training:build", settings, units)]
    if not tokens:
        ours += [
            Contestant(WITHOUT, "jax_training:build", {**settings, "attention": "none"}, units, another=True),
            Contestant("seed", "torch_training:build", {**settings, "kind": "seed"}, units),
        ]
    contestants = (*ours, *_tuned("torch_training:build", tuned, units))
    return Workload(f"{name}_train", "target token" if tokens else "step", contestants, LOSSES, limit, rounds)


def _tuned(build: str, settings: Mapping[str, object], units: int) -> tuple[Contestant, Contestant]:
    """Plain PyTorch at its best, as it is and with its step compiled."""
    compiled = {**settings, "compiled": True}
    return (
        Contestant("tuned", build, settings, units, environment=KEEP_MEMORY),
        Contestant("compiled", build, compiled, units, compiles_cpp=True, environment=KEEP_MEMORY),
    )


LOSSES = Agreement(2e-5, why="of up to four steps of float32, whose rounding the optimiser passes on")

# S: search


def _search(name: str, beam_size: int, rounds: int) -> Workload:
    """W2's model, 64 sentences, 30 steps, none ending early; a unit is a sentence. Limit: the decoder's products of all
    hypotheses, and a tanh for each term of the attention."""
    beam = {"beam_size": beam_size}
    contestants = [
        Contestant("ours", "jax_search:build", beam, SENTENCES),
        *_tuned("torch_search:build_tuned", beam, SENTENCES),
    ]
    if beam_size == 1:
        contestants.append(Contestant("seed", "torch_search:build_seed", {"sentences": 4}, 4, examples=4))
    ties = "random weights bring some tokens as near to each other as rounding"
    return Workload(name, "sentence", tuple(contestants), Agreement(2e-5, 0.03, ties), search_needs(beam_size), rounds)


WORKLOADS: tuple[Workload, ...] = (
    _train("w1", 7),
    _train("w2", 5),
    _additive("forward"),
    _additive("backward"),
    _dot("forward"),
    _dot("backward"),
    SOFTMAX,
    RECURRENT,
    _train("j", 5, tokens=True),
    _search("greedy", 1, 5),
    _search("beam", BEAM, 5),
)

# What the machine can do


def _ceiling(name: str, what: str, operations: float, repeats: int, *shape: int) -> Workload:
    settings = {"what": what, "repeats": repeats, "shape": shape}
    units = int(operations * repeats)
    return Workload(
        name,
        "operation",
        tuple(Contestant(of, f"{of}_ceilings:build", settings, units) for of in ("jax", "torch")),
        rounds=3,
        has_memory=False,
    )


CEILING_WORKLOADS = (
    _ceiling("ceiling_gemm", "gemm", 2 * 1024**3, 8, 1024, 1024, 1024),
    _ceiling("ceiling_small_gemm", "gemm", 2 * 64 * 512 * 2048, 50, 64, 512, 2048),
    _ceiling("ceiling_tanh", "tanh", 2**18, 64, 2**18),
    _ceiling("ceiling_copy", "copy", 2 * 4 * 2**26, 4, 2**26),
)

TUNED = ("tuned", "compiled")
"""The better of the two that run."""

RATIOS: tuple[Ratio, ...] = (
    Ratio("w1_train_vs_seed", "w1_train", ("seed",), goal=8, small=True),
    Ratio("w1_train_vs_tuned", "w1_train", TUNED, small=True),
    Ratio("w2_train_vs_seed", "w2_train", ("seed",), goal=2.6),
    Ratio("w2_train_vs_tuned", "w2_train", TUNED, goal=1.7),
    Ratio("w1_attention_overhead", "w1_train", ("ours",), WITHOUT, goal=1.3, lower_is_better=True, small=True),
    Ratio("w2_attention_overhead", "w2_train", ("ours",), WITHOUT, goal=1.15, lower_is_better=True),
    Ratio("additive_forward", "additive_forward", ("seed",), goal=25, small=True),
    Ratio("additive_backward", "additive_backward", ("seed",), goal=18, small=True),
    Ratio("additive_forward_vs_compiled", "additive_forward", ("compiled",), goal=4, small=True),
    Ratio("additive_backward_vs_compiled", "additive_backward", ("compiled",), goal=10, small=True),
    Ratio("additive_forward_memory", "additive_forward", ("seed",), goal=30, memory=True, small=True),
    Ratio("additive_backward_memory", "additive_backward", ("seed",), goal=15, memory=True, small=True),
    Ratio("dot_forward", "dot_forward", ("SDPA",), goal=1.6),
    Ratio("dot_backward", "dot_backward", ("SDPA",), goal=1.5),
    Ratio("masked_softmax", "masked_softmax", ("seed",), goal=2, small=True),
    Ratio("j_train_vs_tuned", "j_train", TUNED, goal=2.5),
    Ratio("greedy_vs_tuned", "greedy", TUNED, goal=2),
    Ratio("greedy_vs_seed", "greedy", ("seed",), goal=30),
    Ratio("beam_vs_tuned", "beam", TUNED, goal=2.5),
)

START_RATIOS: tuple[Ratio, ...] = (
    Ratio("w1_start_seconds", "start", (), goal=0.3, lower_is_better=True),
    Ratio("w2_start_seconds", "start", (), goal=1.0, lower_is_better=True),
)
"""Seconds, and no ratios: see `parity_tests.speed.start`."""

ALL_RATIOS = (*RATIOS, *START_RATIOS)
NAMES: tuple[str, ...] = (*(workload.name for workload in WORKLOADS), "start")


def find_workload(name: str) -> Workload:
    """The workload of that name."""
    if name in GROWTH_WORKLOADS:
        return GROWTH_WORKLOADS[name]
    return next(workload for workload in (*WORKLOADS, *CEILING_WORKLOADS) if workload.name == name)
