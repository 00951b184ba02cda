"""Options declared once, as fields of dataclasses, and the flat command line that jsonargparse makes of them.

    @dataclass(frozen=True)
    class ModelOptions:
        dropout: Ratio = option(0.3, "share of activations that training sets to zero")

Nothing heavy is imported: the launcher checks a job's hyperparameters with this file too.
"""

import difflib
import math
import re
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveInt, restricted_number_type

from runtime.report import UserError

if TYPE_CHECKING:
    PositiveFloat = float
    NonNegativeFloat = float
    Ratio = float
    OrMinusOne = int
    Seed = int
else:
    PositiveFloat = restricted_number_type("FinitePositiveFloat", float, [(">", 0), ("<", math.inf)])
    NonNegativeFloat = restricted_number_type("FiniteNonNegativeFloat", float, [(">=", 0), ("<", math.inf)])
    Ratio = restricted_number_type("Ratio", float, [(">=", 0), ("<", 1)])
    Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])
    OrMinusOne = restricted_number_type("OrMinusOne", int, (">=", -1))

EXPECTED = {
    PositiveInt: "a whole number above 0",
    NonNegativeInt: "a whole number, 0 or more",
    PositiveFloat: "a finite number above 0",
    NonNegativeFloat: "a finite number, 0 or more",
    Ratio: "a number from 0 to below 1",
    OrMinusOne: "a whole number, or -1",
    Seed: "a whole number from 0 to 4294967295",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}

Resume = Literal["free", "optimizer", "data", "path"]
Classes = Sequence[type]


@dataclass(frozen=True)
class Option:
    """What a field declares; ``group`` is the name of its class."""

    type: Any
    default: Any
    help: str
    resume: Resume
    group: str


def expected(kind: Any) -> str:
    """What a value of an option's type looks like, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return 'a list such as "[1, 2]"'
    return EXPECTED.get(kind, "a text")


def option(default: Any, help: str, *, resume: Resume | None = None) -> Any:
    """A field of a class of options.

    Args:
        default: plain: text, a number, true or false, or a list of these.
        help: what `--help` says of it.
        resume: whether a run may resume with another value. ``free``: yes. ``path``: with ``--resume PATH`` alone.
            ``optimizer`` and ``data``: no, since the optimizer's state has the old value, or it determines which
            samples a step sees. None: as the class says in ``RESUME``, else ``path``.
    """
    default = tuple(default) if isinstance(default, list) else default  # a dataclass takes nothing that may change
    return field(default=default, metadata={"help": help, "resume": resume})


def shared(default: Any) -> Any:
    """A field whose option another class declares, as in ``shared(TrainingOptions.seed)``. Both get its value."""
    return field(default=default, metadata={"shared": True})


def declared(classes: Classes) -> dict[str, Option]:
    """Every option of ``classes`` by its name.

    Raises:
        UserError: a name is declared twice, without an explanation or a default, or with a default not of its type.
    """
    found: dict[str, Option] = {}
    for cls in classes:
        types = get_type_hints(cls)
        for each in fields(cls):
            name, metadata = each.name, each.metadata
            if "shared" in metadata:
                continue
            if "help" not in metadata or each.default is MISSING:
                raise UserError(
                    f"{cls.__name__}.{name} has no default with an explanation; declare it as "
                    f'{name}: {getattr(types[name], "__name__", types[name])} = option(default, "what it does").'
                )
            if name in found:
                raise UserError(
                    f"Option {name} is declared twice, in {found[name].group} and in {cls.__name__}; "
                    "rename one of them, or make one shared()."
                )
            resume = metadata["resume"] or getattr(cls, "RESUME", "path")
            if resume not in get_args(Resume):
                known = ", ".join(get_args(Resume))
                raise UserError(f"{cls.__name__}.{name}: found resume={resume!r}, expected one of {known}.")
            if not _fits(types[name], each.default):
                wanted = expected(types[name])
                raise UserError(f"{cls.__name__}.{name}: found {each.default!r} as its default, expected {wanted}.")
            default = [*each.default] if isinstance(each.default, tuple) else each.default
            found[name] = Option(types[name], default, metadata["help"], resume, cls.__name__)
    for cls in classes:
        for each in fields(cls):
            if each.name not in found:
                raise UserError(f"{cls.__name__}.{each.name} is shared, but no other class declares it as an option().")
    return found


def _fits(kind: Any, value: Any) -> bool:
    """Whether a default is of its option's type: a number, text, true or false, or one of several."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    plain = next((p for p in (bool, int, float, str) if isinstance(kind, type) and issubclass(kind, p)), None)
    if plain and type(value) is not plain and (plain, type(value)) != (float, int):
        return False
    try:
        return plain is None or kind(value) == value
    except ValueError:  # beyond the limits of a restricted number
        return False


def complete(classes: Classes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option with the value that is given, or else its default; raises TypeError for an unknown name."""
    known = declared(classes)
    if unknown := [*given.keys() - known.keys()]:
        raise TypeError(f"unknown option {unknown[0]!r}")
    return {name: given.get(name, each.default) for name, each in known.items()}


def select(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that ``cls`` has, shared ones too: its keyword arguments."""
    return {each.name: options[each.name] for each in fields(cls)}


def parser(classes: Classes, description: str | None = None) -> ArgumentParser:
    """A flat command line, grouped by class in ``--help``."""
    made = ArgumentParser(
        prog="python src/train.py",
        usage="%(prog)s [--option value ...]",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,  # an abbreviation would change its meaning with the next option
    )
    groups = {cls.__name__: made.add_argument_group(cls.__name__) for cls in classes}
    for name, each in declared(classes).items():
        default = "" if each.default == "" else f" (default: {each.default})"
        explained = f"{each.help}{default}".replace("%", "%%")  # argparse formats it
        groups[each.group].add_argument(f"--{name}", type=each.type, default=each.default, help=explained)
    return made


def parse(classes: Classes, argv: Sequence[str], description: str | None = None) -> dict[str, Any]:
    """Every option as a command line gives it, or its default. Options are ``--name value``.

    Raises:
        UserError: an option is unknown (the nearest name is given), or its value is not of its type.
    """
    known = declared(classes)
    given: dict[str, str] = {}
    for i, argument in enumerate(argv):
        if argument.startswith("--"):
            name, _, value = argument.removeprefix("--").partition("=")
            if name not in known and name != "help":
                near = difflib.get_close_matches(name, known, 1)
                raise UserError(f"Unknown option --{name}; {f'did you mean --{near[0]}?' if near else 'see --help.'}")
            given[name] = value or " ".join(argv[i + 1 : i + 2])
    try:
        options = parser(classes, description).parse_args([*argv]).as_dict()
    except ArgumentError as error:
        message = " ".join(str(error).split())
        named = re.match(r'Parser key "(\w+)"|argument --(\w+)', message)
        if not named:
            raise UserError(f"{message[:1].upper()}{message[1:]}; see --help.") from None
        name = named[1] or named[2]
        wanted = expected(known[name].type)
        raise UserError(f"--{name}: found {given.get(name, '')!r}, expected {wanted}.") from None
    return {name: _plain(options[name]) for name in known}


def _plain(value: Any) -> Any:
    """Restricted numbers are of classes of their own, which a checkpoint that may hold plain data only would refuse."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)
