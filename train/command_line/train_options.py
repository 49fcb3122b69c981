"""The command line of `python -m train.nmt`: a preset, and options that change it."""

from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NamedTuple, NoReturn, get_args

import tyro
from tyro.conf import arg

from jax_attn.settings import FAMILIES, AttentionName, OptimizerName, other_family
from train.config import Config, check
from train.config_file import read_config
from train.presets import ABOUT, PRESETS, in_family
from train.setting import NUMBERS, ConfigError, setting_name

PROGRAM = "python -m train.nmt"

RESUMED_OPTIONS = {"--epochs", "--max-steps", "--training.patience", "--training.save-seconds"}
RESUMED_OPTIONS |= {"--mesh", "--distributed", "--coordinator", "--process", "--timeout"}
"""What may be changed in a training that goes on."""

INDENT = 35 * " "
"""The column of the options' descriptions in `HELP`."""

HELP = """\
Train a translator, test it on sentences that it never saw, and leave a run folder.

  python -m train.nmt [PRESET] [OPTIONS]
  python -m train.nmt --resume RUN          go on with a run that was stopped or killed

Presets, with their time on two cores and what to expect:
{presets}

Examples:
  python -m train.nmt
  python -m train.nmt book --data fra.txt
  python -m train.nmt --data pairs.txt                          your own sentence pairs
  python -m train.nmt --data corpora/train --languages de en    two files, one sentence a line
  python -m train.nmt --model.attention none                    a model without attention
  python -m train.nmt --model.family transformer                a Transformer
  python -m train.nmt --mesh data=4                             on four devices; several machines: docs/devices.md

Options, with their values in the preset {preset}:
  --data FILE                      sentence pairs, one source<TAB>target a line; or two files, a stem or a name
                                   (default: {data}); --valid and --test likewise
  --out FOLDER                     the run folder, a new one (default: the next free one in runs/)
  --config FILE                    settings of a JSON, YAML or TOML file, such as config.json of a run
  --init RUN                       begin with the parameters, vocabularies and settings of a run (fine-tuning)
  --epochs {epochs:<23} passes over the training pairs
  --seed {c.seed:<25} seed of the parameters, the order of examples and dropout
  --corpus.tokenizer {c.corpus.tokenizer:<13} words, book, or subwords: unigram, bpe
  --corpus.vocab-size {vocab_size:<12} subwords
  --model.family {c.model.family:<17} recurrent or transformer
{of_family}  --training.batch-size {c.training.batch_size:<10} sentence pairs of a step
  --training.learning-rate {c.training.learning_rate:<7} the learning rate, at its highest
  --training.schedule {c.training.schedule:<12} its course: constant, cosine, inverse_sqrt, plateau
  --training.optimizer {c.training.optimizer:<11} {optimizers}
  --training.best {c.training.best:<16} what chooses the parameters to keep: loss, bleu, chrf, last
  --search.beam-size {c.search.beam_size:<13} hypotheses kept when translating; 1 is greedy search

All options: python -m train.nmt {preset} --help-all
"""

OF_FAMILY = {
    "recurrent": """\
  --model.attention {c.model.attention:<14} the scoring function:
{attentions}
  --model.cell {c.model.cell:<19} the recurrent cell: gru, lstm
  --model.num-hiddens {c.model.num_hiddens:<12} hidden units
  --model.embed-size {c.model.embed_size:<13} features of a word's embedding
  --model.dropout {c.model.dropout:<16} dropout between layers and on the attention weights
""",
    "transformer": """\
  --model.num-layers {c.model.num_layers:<13} layers of encoder and decoder
  --model.embed-size {c.model.embed_size:<13} features of an embedding and of a layer's result
  --model.num-hiddens {c.model.num_hiddens:<12} features within the feed-forward networks
  --model.num-heads {c.model.num_heads:<14} heads of every attention
  --model.norm {c.model.norm:<19} normalise after each sublayer (post) or before (pre)
  --model.dropout {c.model.dropout:<16} dropout of the embeddings and of each sublayer's result
""",
}
"""The lines of the help that differ by the family of the model."""


@dataclass(frozen=True)
class Options:
    """What may stand after the preset."""

    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Settings of a JSON, YAML or TOML file, such as config.json of a run; other options change them."""
    resume: Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")] = None
    """Go on with a run that was stopped or killed. It keeps its settings."""
    settings: Annotated[Config, arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True)
class Origin:
    """The options that decide what the defaults of the others are. They are read first, and then with all others."""

    config: Path | None = None
    resume: Path | None = None
    init: Path | None = None
    family: Annotated[str | None, arg(name="model.family")] = None


HELPS = frozenset(("-h", "--help", "--help-all"))


class Command(NamedTuple):
    """What the user asks for."""

    preset: str
    config: Config
    resume: Path | None = None
    """The run folder of a training that is to go on."""


def parse(arguments: list[str]) -> Command:
    """Return the preset's name and its configuration with the changes of the command line.

    Raises:
        ConfigError: no such preset, file or run, or settings that no run could use.
        SystemExit: after help, or after an option that there is not.
    """
    for argument in arguments:
        if argument.encode(errors="replace").decode() != argument:
            raise ConfigError(f"the argument {argument!r} holds bytes that are not UTF-8")
    preset, options = _split_preset(arguments)
    has_preset = len(options) < len(arguments)
    asked, options = HELPS.intersection(options), [option for option in options if option not in HELPS]
    default = PRESETS[preset]
    origin, _ = tyro.cli(Origin, prog=f"{PROGRAM} {preset}", args=options, return_unknown_args=True, registry=NUMBERS)
    file, resume, init = origin.config, origin.resume, origin.init
    family = origin.family if origin.family in FAMILIES else None
    if resume is not None:
        changed = {option.split("=")[0].replace("_", "-") for option in options if option.startswith("-")}
        if has_preset or changed - RESUMED_OPTIONS - {"--resume"}:
            allowed = ", ".join(sorted(RESUMED_OPTIONS))
            raise ConfigError(f"--resume RUN keeps the run's settings; beside it there may be only {allowed}")
        file = resume / "config.json"
    elif init is not None and file is None and not has_preset:
        file = init / "config.json"
    for run in (resume, init):
        if run is not None and not run.is_dir():
            raise ConfigError(f"there is no folder {run}; name the run folder that `python -m train.nmt` wrote")
    if file is not None:  # its settings are the defaults of the options
        preset, default = read_config(file, family if origin.config else None)
        if family not in (None, default.model.family):
            raise ConfigError(f"a training with --init {init} must have its --model.family {default.model.family}")
    elif family is not None:
        default = in_family(default, family)
    if asked:
        _print_all_options(preset, default) if "--help-all" in asked else _print_help(preset, default)
    given, rest = _read(preset, default, options)
    config = given.settings
    for name in (*config.data, *config.valid, *config.test):
        if name in PRESETS:
            _refuse(preset, config, [name], options)
    if resume is not None and not config.data and config.corpus.tokenizer == "pretrained":
        raise ConfigError(
            f"{resume} was imported, and has no training to resume; begin one: --init {resume} --data FILE"
        )
    if preset == "own" and not config.data:
        raise ConfigError("the preset own needs --data FILE, your sentence pairs")
    if rest:
        from train.training import optimizer  # imports JAX

        same = config.training.optimizer == default.training.optimizer
        known = default.training.optimizer_settings if same else {}
        changed_settings, unknown = optimizer.read_options(config.training.optimizer, rest, f"{PROGRAM} {preset}")
        if unknown:
            _refuse(preset, config, unknown, options)
        config = replace(config, training=replace(config.training, optimizer_settings=known | changed_settings))
        optimizer.chosen_optimizer(config.training)
    check(config)
    return Command(preset, config, resume)


def _split_preset(arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments or arguments[0].startswith("-"):
        has_data = any(argument.split("=")[0] == "--data" for argument in arguments)
        return "own" if has_data else "demo", arguments
    if arguments[0] not in PRESETS:
        raise ConfigError(f"there is no preset {arguments[0]!r}; there are: {', '.join(PRESETS)}")
    return arguments[0], arguments[1:]


def _read(preset: str, default: Config, arguments: list[str]) -> tuple[Options, list[str]]:
    """Read the options, whose defaults are given; also return the arguments that are none."""
    prog, options = f"{PROGRAM} {preset}", Options(settings=default)
    return tyro.cli(Options, prog=prog, args=arguments, default=options, return_unknown_args=True, registry=NUMBERS)


def _refuse(preset: str, config: Config, unknown: list[str], options: list[str]) -> NoReturn:
    """Say what is wrong with arguments that are no options."""
    from train.training.optimizer import OPTIMIZERS, require_setting, setting_names

    first = unknown[0]
    if first in PRESETS:
        others = [option for option in options if option != first]
        raise ConfigError(f"the preset comes first: {PROGRAM} {' '.join([first, *others])}")
    name = first.removeprefix("--training.").split("=")[0].replace("-", "_").removeprefix("no_")
    if any(name in setting_names(optimizer) for optimizer in OPTIMIZERS):
        require_setting(config.training.optimizer, name)
    of_model = first.removeprefix("--model.").removeprefix("no-").split("=")[0].replace("-", "_")
    if first.startswith("--model.") and (family := other_family(of_model, config.model.family)):
        raise ConfigError(f"{first} needs --model.family {family}; the model's family is {config.model.family}")
    if name.lstrip("_") in ("device", "devices", "gpu", "gpus", "cuda", "cpu"):
        raise ConfigError(
            f"there is no option {first}: JAX takes the GPU that it finds, or the devices that JAX_PLATFORMS names; "
            "--mesh shares each batch among several (docs/devices.md)"
        )
    if meant := _similar(name, config):
        raise ConfigError(f"there is no option {first}; did you mean {' or '.join(meant)}?")
    tyro.cli(Config, prog=f"{PROGRAM} {preset}", args=unknown, default=config)  # a message, and SystemExit
    raise ConfigError(f"there is no option {first}")


def _similar(name: str, config: Config) -> list[str]:
    """Return the options whose last part is this name, or has it as its initials, as --lr for learning_rate."""
    name = name.lstrip("-_").rpartition(".")[2]
    found = []
    for section in fields(Config):
        value = getattr(config, section.name)
        for setting in fields(value) if is_dataclass(value) else ():
            if name in (setting.name, "".join(word[0] for word in setting.name.split("_") if "_" in setting.name)):
                found.append(f"--{setting_name(section.name, setting.name)}")
    return found


def _print_help(preset: str, config: Config) -> NoReturn:
    attentions = fill(", ".join(get_args(AttentionName)), 110, initial_indent=INDENT, subsequent_indent=INDENT)
    optimizers = ", ".join(get_args(OptimizerName))
    presets = "\n".join(f"  {name:<20} {about}" for name, about in ABOUT.items())
    by_pairs = {"epochs": config.epochs or "by pairs", "vocab_size": config.corpus.vocab_size or "by pairs"}
    of_family = OF_FAMILY[config.model.family].format(c=config, attentions=attentions)
    data = " ".join(config.data) or ("the embedded corpus" if preset == "demo" else "none, it must be given")
    texts = {"data": data, "presets": presets, "of_family": of_family, "optimizers": optimizers}
    print(HELP.format(preset=preset, c=config, **by_pairs, **texts), end="")
    raise SystemExit(0)


def _print_all_options(preset: str, config: Config) -> NoReturn:
    with suppress(SystemExit):
        _read(preset, config, ["--help"])

    from train.training.optimizer import OPTIMIZERS

    print("Settings of the optimisers, as in PyTorch:")
    for name, settings in OPTIMIZERS.items():
        print(f"  {name:<10}", *(_as_option(*setting) for setting in vars(settings).items()))
    raise SystemExit(0)


def _as_option(name: str, value: Any) -> str:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--training.{option}" if value else f"--training.no-{option}"
    return f"--training.{option} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
