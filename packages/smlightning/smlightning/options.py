"""Options are typed fields of one dataclass; jsonargparse makes a flat command line of them.

    @dataclass(frozen=True)
    class Options(TrainerOptions):
        dropout: Ratio = option(0.3, "share of activations that training sets to zero")

jsonargparse checks values against types and prints ``--help``. This file adds an option's
``resume``, and errors with the option and the nearest name.

The launcher checks a job's hyperparameters with this file, so it imports nothing heavy.
"""

import copy
import difflib
import math
import re
import sys
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

from smlightning.errors import UserError

try:
    from jsonargparse import ArgumentParser
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: this Python, {sys.executable}, has no {missing.name}; run `make setup`, then use "
        "the project's environment: . .venv/bin/activate"
    ) from None
from jsonargparse.typing import NonNegativeInt, PositiveInt, restricted_number_type

if TYPE_CHECKING:
    PositiveFloat = float
    NonNegativeFloat = float
    Ratio = float
    OrMinusOne = int
    PositiveOrMinusOne = int
    Seed = int
else:  # jsonargparse's own PositiveFloat takes inf
    PositiveFloat = restricted_number_type(
        "FinitePositiveFloat", float, [(">", 0), ("<", math.inf)]
    )
    NonNegativeFloat = restricted_number_type(
        "FiniteNonNegativeFloat", float, [(">=", 0), ("<", math.inf)]
    )
    Ratio = restricted_number_type("Ratio", float, [(">=", 0), ("<", 1)])
    OrMinusOne = restricted_number_type("OrMinusOne", int, (">=", -1))
    PositiveOrMinusOne = restricted_number_type(
        "PositiveOrMinusOne", int, [(">", 0), ("==", -1)], join="or"
    )
    Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])

DESCRIPTIONS = {
    PositiveInt: "a whole number above 0",
    NonNegativeInt: "a whole number, 0 or more",
    PositiveFloat: "a finite number above 0",
    NonNegativeFloat: "a finite number, 0 or more",
    Ratio: "a number from 0 to below 1",
    OrMinusOne: "a whole number, 0 or more, or -1",
    PositiveOrMinusOne: "a whole number above 0, or -1",
    Seed: "a whole number from 0 to 4294967295",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}

Resume = Literal["free", "optimizer", "data", "path"]

# SageMaker's toolkit in AWS's images starts the script through a shell (sagemaker-training 5.0.0 to
# 5.1.2, process.py: `" ".join(cmd)`), which would split and expand a text, execute `$(…)` in it,
# and drop an empty one. Newer toolkits use no shell, so quotes are no way out.
ENCODED = "percent-encoded:"
PLAIN = re.compile(r"(?!--|percent-encoded:)[\w@%+=:,./-]+", re.ASCII)  # shlex.quote's


@dataclass(frozen=True)
class Option:
    """One option, as a field declares it."""

    type: Any
    default: Any
    help: str
    resume: Resume


def option(default: Any, help: str, *, resume: Resume = "path") -> Any:
    """A field of the class of options.

    Args:
        default: text, a number, true or false, a list of these, or a dict of them by name.
        help: its explanation in ``--help``.
        resume: whether a run may resume with another value. ``free``: yes. ``path``: only with
            ``--resume PATH``. ``optimizer`` and ``data``: no, since the optimizer's state, or the
            samples of each step, depend on it.
    """
    metadata = {"help": help, "resume": resume}
    if isinstance(default, list | dict):  # a dataclass rejects a mutable default
        return field(default_factory=partial(copy.copy, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def declared_options(cls: type) -> dict[str, Option]:
    """Every option of the class by its name.

    Raises:
        UserError: the class is no dataclass, or an option has no default with an explanation.
    """
    if "__dataclass_fields__" not in vars(cls):
        hint = f"write @dataclass(frozen=True) above class {cls.__name__}"
        raise UserError(f"{cls.__name__} of src/options.py is not a dataclass", hint)
    types = get_type_hints(cls)
    options: dict[str, Option] = {}
    for declaration in fields(cls):
        name, metadata = declaration.name, declaration.metadata
        default, factory = declaration.default, declaration.default_factory
        if factory is not MISSING:
            default = factory()
        if default is MISSING or "help" not in metadata:
            raise UserError(
                f"{cls.__name__}.{name} has no default with an explanation",
                f'declare it in src/options.py as {name}: TYPE = option(DEFAULT, "what it does")',
            )
        if metadata["resume"] not in get_args(Resume):
            raise UserError(
                f'{cls.__name__}.{name} has resume="{metadata["resume"]}" in src/options.py',
                f"expected one of {', '.join(get_args(Resume))}",
            )
        options[name] = Option(types[name], _plain(default), metadata["help"], metadata["resume"])
    return options


def values_of(options: Any) -> dict[str, Any]:
    """The value of every option, as a plain type."""
    return {name: _plain(value) for name, value in vars(options).items()}


def _plain(value: Any) -> Any:
    """The value as a plain type: a checkpoint cannot contain classes of restricted numbers."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    for kind in (bool, int, float, str):  # bool first: it is a subclass of int
        if isinstance(value, kind):
            return kind(value)
    return value


def describe_type(kind: Any) -> str:
    """The values of an option's type, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return 'a list such as "[1, 2]"'
    if get_origin(kind) is dict:
        return """a dict such as '{"a": 1}'"""
    return DESCRIPTIONS.get(kind, f"a value of type {getattr(kind, '__name__', kind)}")


def encode(value: Any) -> Any:
    """The value of an option as every launcher passes it on unchanged.

    Only a text that a shell or a command line would change differs: `review text` becomes
    `percent-encoded:review%20text`, which `read_command_line` decodes.
    """
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return value
    return ENCODED + quote(value).replace("~", "%7E")


def decode(text: str) -> str:
    """The text that `encode` was given."""
    return unquote(text.removeprefix(ENCODED)) if text.startswith(ENCODED) else text


def option_parser(cls: type, description: str | None = None) -> ArgumentParser:
    """A flat command line; the project's own options come first in ``--help``.

    Raises:
        UserError: jsonargparse cannot read an option's type.
    """
    parser = ArgumentParser(
        prog="python src/train.py",
        usage="%(prog)s [--option value ...]",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,  # a new option would change the meaning of an abbreviation
    )
    own = parser.add_argument_group("the project's options (src/options.py)")
    others = parser.add_argument_group("options of every project")
    for name, declared in declared_options(cls).items():
        default = "" if declared.default == "" else f" (default: {declared.default})"
        help = f"{declared.help}{default}".replace("%", "%%")  # argparse formats it
        group = own if name in cls.__annotations__ else others
        try:
            group.add_argument(f"--{name}", type=declared.type, default=declared.default, help=help)
        except ValueError as error:
            raise UserError(
                f"{cls.__name__}.{name} has a type that is not for a command line ({error})",
                "use str, bool, int, float, a list, dict[str, …] or Literal of these, or a type of "
                "smlightning.options",
            ) from None
    return parser


def parse_command_line(cls: type, argv: Sequence[str], description: str | None = None) -> Any:
    """An instance of the class of options, from ``--name value`` or ``--name=value``.

    ``--help`` prints all options and exits with status 0.

    Raises:
        UserError: an option is unknown, has no value or a value of another type, or
            ``__post_init__`` rejects the values.
    """
    values = read_command_line(cls, argv, description)
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(str(error), f"see {cls.__name__} in src/options.py") from None


def read_command_line(
    cls: type, argv: Sequence[str], description: str | None = None
) -> dict[str, Any]:
    """The value of every option, not yet checked by ``__post_init__``.

    SageMaker's toolkit writes an option of one letter as ``-n value``.
    """
    options = declared_options(cls)
    pairs: list[tuple[str, str]] = []
    remaining = list(argv)
    parser = option_parser(cls, description)
    while remaining:
        argument = remaining.pop(0)
        dashes, name, equals, value = _parts(argument)
        if name in ("help", "h") and dashes and name not in options:
            parser.parse_args(["--help"])  # raises SystemExit
        if dashes != "--" and not (dashes and name in options and len(name) == 1):
            raise UserError(
                f"found {argument!r} without an option before it",
                "write options as --name value; --help lists them",
            )
        if name not in options:
            nearest = nearest_option(name, options)
            hint = f"did you mean --{nearest}?" if nearest else "--help lists the options"
            flag = name.replace("-", "_").removeprefix("no_")
            if flag in options and options[flag].type is bool:
                hint = f"write --{flag} false"
            raise UserError(f"unknown option --{name}", hint)
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                raise OptionError(name, "", describe_type(options[name].type))
            value = remaining.pop(0)
        pairs.append((name, decode(value)))
    # A text stands as it is; argparse drops the text `--`.
    texts = {name: value for name, value in pairs if options[name].type is str}
    others = [f"--{name}={value}" for name, value in pairs if name not in texts]
    try:
        values = {**vars(parser.parse_args(others)), **texts}
    except ArgumentError as error:
        _raise_option_error(error, dict(pairs), options)
    return {name: _plain(values[name]) for name in options}


def _parts(argument: str) -> tuple[str, str, str, str]:
    """``--name=value`` as its dashes, name, equals sign and value; each may be empty."""
    words, equals, value = argument.partition("=")
    name = words.removeprefix("-").removeprefix("-")
    return words[: len(words) - len(name)], name, equals, value


def _raise_option_error(
    error: ArgumentError, given: Mapping[str, str], options: Mapping[str, Option]
) -> NoReturn:
    """Raise an OptionError for the option in jsonargparse's error."""
    key = re.search(r'Parser key "(\w+)', error.message)
    if key is None:
        raise error
    declared = options[key[1]]
    value = given.get(key[1], str(declared.default))
    raise OptionError(key[1], value, describe_type(declared.type)) from None


class OptionError(UserError):
    """The value of an option is not of its type.

    Attributes:
        option: its name.
        value: its text.
        expected: the type, in words.
    """

    def __init__(self, option: str, value: str, expected: str) -> None:
        super().__init__(
            f"--{option}: found {value!r}, expected {expected}",
            "correct it; --help explains the option",
        )
        self.option = option
        self.value = value
        self.expected = expected


# Names in other trainers, such as the arguments of the Hugging Face Trainer.
ELSEWHERE = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "max_grad_norm": "gradient_clip_val",
    "resume_from_checkpoint": "resume",
    "dataloader_num_workers": "num_workers",
    "model_name_or_path": "model_name",
    "dataset_name": "dataset",
    "max_seq_length": "max_length",
    "logging_steps": "log_every",
    "eval_steps": "val_check_steps",
    "save_steps": "checkpoint_steps",
    "torch_compile": "compile",
    "bf16": "precision",
    "fp16": "precision",
}


def nearest_option(name: str, options: Iterable[str]) -> str:
    """The option with the nearest name, or with this meaning; empty if there is none."""
    known, plain = list(options), name.replace("-", "_").lower()
    meant = ELSEWHERE.get(plain, "")
    if meant in known:
        return meant
    return next(iter(difflib.get_close_matches(plain, known, 1)), "")


def check_monitor_name(monitor: object) -> None:
    """Raise a UserError if MONITOR is not a text: a comma after it makes a tuple."""
    if not isinstance(monitor, str):
        problem = f"MONITOR of src/options.py is {monitor!r}; expected the name of a metric"
        raise UserError(problem, 'write MONITOR = "val/loss", with your name')
