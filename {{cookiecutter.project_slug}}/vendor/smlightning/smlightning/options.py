"""Options are typed fields of dataclasses; jsonargparse makes one flat command line of them.

    @dataclass(frozen=True)
    class ModelOptions:
        dropout: Ratio = option(0.3, "share of activations that training sets to zero")

jsonargparse checks values against types and prints ``--help``. Added here are the field's
``resume`` class, options that two classes share, and errors that name the option and the nearest
one.

Nothing heavy is imported: the launcher checks a job's hyperparameters with this file, too.
"""

import difflib
import math
import sys
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from smlightning.errors import UserError

try:
    from jsonargparse import ArgumentParser
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: this Python, {sys.executable}, has no {missing.name}; run `make setup`, then use "
        "the project's environment: . .venv/bin/activate"
    ) from None
from jsonargparse.typing import NonNegativeInt, PositiveInt, restricted_number_type

__all__ = [
    "NonNegativeFloat",
    "NonNegativeInt",
    "Option",
    "OrMinusOne",
    "PositiveFloat",
    "PositiveInt",
    "PositiveOrMinusOne",
    "Ratio",
    "Seed",
    "arguments_for",
    "declared_options",
    "describe_type",
    "nearest_option",
    "option",
    "option_parser",
    "parse_command_line",
    "read_command_line",
    "shared",
    "with_defaults",
]

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
}

Resume = Literal["free", "optimizer", "data", "path"]
Classes = Sequence[type]


@dataclass(frozen=True)
class Option:
    """One option, as a field declares it."""

    type: Any
    default: Any
    help: str
    resume: Resume
    group: str  # name of the class that declares it


def option(default: Any, help: str = "", *, resume: Resume | None = None) -> Any:
    """A field of a class of options.

    Args:
        default: plain: text, a number, true or false, or a list of these.
        help: what ``--help`` says of it.
        resume: whether a run may resume with another value. ``free``: yes. ``path``: only with
            ``--resume PATH``. ``optimizer`` and ``data``: no, since the optimizer's state has the
            old value, or it determines which samples a step sees. None: as ``RESUME`` of the class
            says, else ``path``.
    """
    if isinstance(default, list):
        default = tuple(default)  # a dataclass refuses a default that can be changed
    return field(default=default, metadata={"help": help, "resume": resume})


def shared(default: Any) -> Any:
    """A field whose option another class declares, as in ``shared(TrainingOptions.seed)``.

    Both classes get its value.
    """
    return field(default=default, metadata={"shared": True})


def declared_options(classes: Classes) -> dict[str, Option]:
    """Every option of ``classes`` by its name.

    Raises:
        UserError: a name is declared twice, without an explanation or a default, or with a default
            that is not of its type; or a shared option is declared nowhere.
    """
    options: dict[str, Option] = {}
    for cls in classes:
        types = get_type_hints(cls)
        for declaration in fields(cls):
            name = declaration.name
            if "shared" in declaration.metadata:
                continue
            if name in options:
                raise UserError(
                    f"option {name} is declared twice, in {options[name].group} and {cls.__name__}",
                    "rename one of them, or make one shared()",
                )
            options[name] = _declared_option(cls, declaration, types[name])
    for cls in classes:
        for declaration in fields(cls):
            if declaration.name not in options:
                raise UserError(
                    f"{cls.__name__}.{declaration.name} is shared, but no other class declares it",
                    "declare it in one of them as option(default, explanation)",
                )
    return options


def _declared_option(cls: type, declaration: Field[Any], kind: Any) -> Option:
    name = f"{cls.__name__}.{declaration.name}"
    default, explanation = declaration.default, declaration.metadata.get("help")
    if default is MISSING or not explanation:
        type_name = getattr(kind, "__name__", kind)
        raise UserError(
            f"{name} has no default with an explanation",
            f'declare it as {declaration.name}: {type_name} = option(default, "what it does")',
        )
    resume = declaration.metadata["resume"] or getattr(cls, "RESUME", "path")
    if resume not in get_args(Resume):
        known = ", ".join(get_args(Resume))
        raise UserError(f"{name} has resume={resume!r}", f"take one of {known}")
    if not _is_of_type(default, kind):
        raise UserError(
            f"{name} has the default {default!r}, expected {describe_type(kind)}",
            "correct the default or the type",
        )
    plain = list(default) if isinstance(default, tuple) else default
    return Option(kind, plain, explanation, resume, cls.__name__)


def _is_of_type(default: Any, kind: Any) -> bool:
    """Whether a default is of its option's type; a whole number is a number, too."""
    if get_origin(kind) is Literal:
        return default in get_args(kind)
    base = _plain_base(kind)
    if base is None:  # a list, say
        return True
    if type(default) is not base and (base, type(default)) != (float, int):
        return False
    try:
        return bool(kind(default) == default)
    except ValueError:  # outside the range of a restricted number
        return False


def _plain_base(kind: Any) -> type | None:
    """Which of bool, int, float and str a type is or is made from."""
    if not isinstance(kind, type):
        return None
    for base in (bool, int, float, str):  # bool first: it is a kind of int
        if issubclass(kind, base):
            return base
    return None


def describe_type(kind: Any) -> str:
    """What a value of an option's type looks like, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return 'a list such as "[1, 2]"'
    if kind is str:
        return "a text"
    return DESCRIPTIONS.get(kind, f"a value of type {getattr(kind, '__name__', kind)}")


def with_defaults(classes: Classes, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every option with its value in ``values``, or else its default.

    Raises:
        UserError: ``values`` has a name that no class declares, and the nearest one is said; or a
            value that is not of its option's type.
    """
    options = declared_options(classes)
    for name, value in values.items():
        if name not in options:
            _refuse_unknown(name, options)
        if not _is_of_type(value, options[name].type):
            _refuse_value(name, str(value), options[name])
    return {name: values.get(name, declared.default) for name, declared in options.items()}


def arguments_for(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of ``cls``: those of ``values`` that it has, shared ones too."""
    return {declaration.name: values[declaration.name] for declaration in fields(cls)}


def option_parser(classes: Classes, description: str | None = None) -> ArgumentParser:
    """A flat command line, grouped by class in ``--help``.

    Raises:
        UserError: jsonargparse cannot read an option's type.
    """
    parser = ArgumentParser(
        prog="python src/train.py",
        usage="%(prog)s [--option value ...]",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,  # an abbreviation would change its meaning with the next option
    )
    groups = {cls.__name__: parser.add_argument_group(cls.__name__) for cls in classes}
    for name, declared in declared_options(classes).items():
        default = "" if declared.default == "" else f" (default: {declared.default})"
        help = f"{declared.help}{default}".replace("%", "%%")  # argparse formats it
        try:
            groups[declared.group].add_argument(
                f"--{name}", type=declared.type, default=declared.default, help=help
            )
        except ValueError as error:
            raise UserError(
                f"{declared.group}.{name} has a type that no command line can hold ({error})",
                "take str, bool, int, float, a list or a Literal of these, or a type of "
                "smlightning.options",
            ) from None
    return parser


def parse_command_line(
    classes: Classes, argv: Sequence[str], description: str | None = None
) -> dict[str, Any]:
    """Every option as the command line gives it, or its default.

    Options are ``--name value`` or ``--name=value``.
    ``--help`` prints all of them and exits with status 0.

    Raises:
        UserError: an option is unknown, and the nearest name is said; it has no value, or one that
            is not of its type; or values do not go together.
    """
    values = read_command_line(classes, argv, description)
    refuse_conflicts(classes, values)
    return values


def read_command_line(
    classes: Classes, argv: Sequence[str], description: str | None = None
) -> dict[str, Any]:
    """As `parse_command_line`, but for values that do not go together."""
    options = declared_options(classes)
    pairs: list[tuple[str, str]] = []
    remaining = list(argv)
    parser = option_parser(classes, description)
    while remaining:
        argument = remaining.pop(0)
        if argument in ("--help", "-h"):
            parser.parse_args(["--help"])  # raises SystemExit
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            raise UserError(
                f"found {argument!r}, which is no option's value",
                "write options as --name value; --help lists them",
            )
        if name not in options:
            _refuse_unknown(name, options)
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                _refuse_value(name, "", options[name])
            value = remaining.pop(0)
        pairs.append((name, value))
    try:
        values = parser.parse_args([f"--{name}={value}" for name, value in pairs]).as_dict()
    except ArgumentError:
        for name, value in pairs:
            if not _is_readable(parser, name, value):
                _refuse_value(name, value, options[name])
        raise
    return {name: _plain(values[name]) for name in options}


def refuse_conflicts(classes: Classes, values: Mapping[str, Any]) -> None:
    """Build each class, whose ``__post_init__`` refuses values that do not go together.

    Args:
        classes: that declare the options.
        values: of every option.

    Raises:
        UserError: of a ``__post_init__``; a ValueError of it becomes one.
    """
    for cls in classes:
        try:
            cls(**arguments_for(cls, values))
        except ValueError as refused:
            raise UserError(str(refused), f"see {cls.__name__} in src/options.py") from None


class OptionError(UserError):
    """The command line has a value that is not of its option's type.

    Attributes:
        option: its name.
        value: the text that the command line has.
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


# What other trainers call an option: the Hugging Face Trainer's arguments, and usual names.
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
    """The option that is meant by a name that none has; empty where no one can tell."""
    known = list(options)
    meant = ELSEWHERE.get(name.replace("-", "_").lower(), "")
    if meant in known:
        return meant
    return next(iter(difflib.get_close_matches(name, known, 1)), "")


def _refuse_unknown(name: str, options: Mapping[str, Option]) -> NoReturn:
    nearest = nearest_option(name, options)
    cure = f"did you mean --{nearest}?" if nearest else "--help lists the options"
    raise UserError(f"unknown option --{name}", cure)


def _refuse_value(name: str, value: str, declared: Option) -> NoReturn:
    expected = describe_type(declared.type)
    raise OptionError(name, value, expected)


def _is_readable(parser: ArgumentParser, name: str, value: str) -> bool:
    try:
        parser.parse_args([f"--{name}={value}"])
    except ArgumentError:
        return False
    return True


def _plain(value: Any) -> Any:
    """The value as a plain type: a checkpoint may not hold the classes of restricted numbers."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    base = _plain_base(type(value))
    return value if base is None else base(value)
