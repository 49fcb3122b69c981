"""The command line of `python -m train.nmt`: a preset, and options that change it."""

import argparse
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

import tyro
from docstring_parser import parse_from_object
from typing_extensions import Doc
from tyro.conf import arg

from jax_attn.settings import FAMILIES, other_family
from train.config import Config, check, require_effect
from train.config_file import read_config
from train.presets import ABOUT, PRESETS, in_family
from train.setting import NUMBERS, ConfigError, setting_name

PROGRAM = "python -m train.nmt"

RESUMED_OPTIONS = {"--epochs", "--max-steps", "--training.patience", "--training.save-seconds"}
RESUMED_OPTIONS |= {"--mesh", "--distributed", "--coordinator", "--process", "--timeout"}
"""What may be changed in a training that goes on."""

HELP = """\
Train a translator, test it on sentences that it never saw, and leave a run folder.

  python -m train.nmt [PRESET] [OPTIONS]
  python -m train.nmt --resume RUN          go on with a run that was stopped or killed
  python -m train.nmt --config FILE         settings of a JSON or TOML file, such as config.json of a run

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
{options}

All options: python -m train.nmt {preset} --help-all
"""

EVERY_DAY = (
    "data", "out", "init", "epochs", "seed", "corpus.tokenizer", "corpus.vocab_size", "model.family", "model.attention",
    "model.cell", "model.num_layers", "model.num_hiddens", "model.embed_size", "model.num_heads", "model.norm",
    "model.dropout", "training.batch_size", "training.learning_rate", "training.schedule", "training.optimizer",
    "training.best", "search.beam_size",
)  # fmt: skip
"""The settings that `--help` shows; each as far as the model's family has it."""


@dataclass(frozen=True)
class Options:
    """What may stand after the preset."""

    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Settings of a JSON or TOML file, such as config.json of a run; other options change them."""
    resume: Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")] = None
    """Go on with a run that was stopped or killed. It keeps its settings."""
    settings: Annotated[Config, arg(name="")] = field(default_factory=Config)


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
    origin = _read_origin(options)
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
        if run is not None and not (run / "config.json").exists():
            raise ConfigError(f"{run} has no config.json; name the run folder that `python -m train.nmt` wrote")
    if file is not None:  # its settings are the defaults of the options
        preset, default = read_config(file, family if origin.config else None, preset if has_preset else None)
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
    if config.corpus.tokenizer == "pretrained" and config.init is None:
        if resume is None:
            raise ConfigError("corpus.tokenizer pretrained needs --init, an imported run")
        raise ConfigError(
            f"{resume} was imported, and has no training to resume; begin one: --init {resume} --data FILE"
        )
    if preset == "own" and not config.data:
        raise ConfigError("the preset own needs --data FILE, your sentence pairs")
    if rest or config.training.optimizer_settings:
        from train.training import optimizer  # imports JAX

        name = config.training.optimizer
        known = default.training.optimizer_settings if name == default.training.optimizer else {}
        changed_settings, unknown = optimizer.read_options(name, known, rest, f"{PROGRAM} {preset}")
        if unknown:
            _refuse(preset, config, unknown, options)
        config = replace(config, training=replace(config.training, optimizer_settings=known | changed_settings))
        optimizer.chosen_optimizer(config.training)
    check(config)
    require_effect(config, default)
    return Command(preset, config, resume)


def _split_preset(arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments or arguments[0].startswith("-"):
        has_data = any(argument.split("=")[0] == "--data" for argument in arguments)
        return "own" if has_data else "demo", arguments
    if arguments[0] not in PRESETS:
        raise ConfigError(f"there is no preset {arguments[0]!r}; there are: {', '.join(PRESETS)}")
    return arguments[0], arguments[1:]


def _read_origin(options: list[str]) -> argparse.Namespace:
    """Read the options that decide what the defaults of the others are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "resume", "init"):
        parser.add_argument(f"--{name}", type=Path, nargs="?")
    parser.add_argument("--model.family", dest="family", nargs="?")
    return parser.parse_known_args(options)[0]


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
    tyro.cli(Config, prog=f"{PROGRAM} {preset}", args=unknown, default=config)  # a message, and SystemExit
    raise ConfigError(f"there is no option {first}")


def _print_help(preset: str, config: Config) -> NoReturn:
    presets = "\n".join(f"  {name:<20} {about}" for name, about in ABOUT.items())
    options = "\n".join(filter(None, (_explain(config, *name.rpartition(".")[::2]) for name in EVERY_DAY)))
    print(HELP.format(preset=preset, presets=presets, options=options), end="")
    raise SystemExit(0)


@cache
def _descriptions(kind: Any) -> dict[str, str]:
    """Read the descriptions of a dataclass's fields from its source."""
    return {param.arg_name: param.description or "" for param in parse_from_object(kind).params}


def _explain(config: Config, section: str, name: str) -> str:
    """Return an option with its value, the first sentence of its description, and its choices; "" if there is none."""
    settings: Any = getattr(config, section) if section else config
    hint = get_type_hints(type(settings), include_extras=True).get(name)
    if hint is None:
        return ""
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    described = _descriptions(settings.__class__).get(name, "")
    text = next((each.documentation for each in metadata if isinstance(each, Doc)), described)
    sentence = " ".join(text.split()).partition(". ")[0].rstrip(".")
    choices = f" ({', '.join(get_args(kind))})" if get_origin(kind) is Literal else ""
    value = getattr(settings, name)
    if value in (None, ()):
        value = next(each.metavar for each in metadata if getattr(each, "metavar", None)).partition(" ")[0]
    option = f"  --{setting_name(section, name) if section else name} {value}"
    return fill(f"{option:<34} {sentence}{choices}", 118, subsequent_indent=35 * " ")


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
