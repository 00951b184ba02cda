"""A command line made from a typed function, by jsonargparse; a mistake is answered in one sentence."""

import difflib
import inspect
import math
import re
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
}


def parser(function: Callable, description: str | None = None) -> ArgumentParser:
    """Options named, typed and defaulted as ``function``'s parameters, explained as in its docstring."""
    made = ArgumentParser(
        prog="python src/train.py",
        usage="%(prog)s [--option value ...]",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,  # an abbreviation would change its meaning with the next option
    )
    made.add_function_arguments(function, fail_untyped=True)
    return made


def parse(function: Callable, argv: Sequence[str], description: str | None = None) -> dict[str, Any]:
    """The keyword arguments for ``function`` that a command line gives. Options are ``--name value``.

    Raises:
        UserError: an option is unknown (the nearest name is given), or its value is not of its type.
    """
    schema = inspect.signature(function).parameters
    given: dict[str, str] = {}
    for i, argument in enumerate(argv):
        if argument.startswith("--"):
            name, _, value = argument.removeprefix("--").partition("=")
            if name not in schema and name != "help":
                near = difflib.get_close_matches(name, schema, 1)
                raise UserError(
                    f"Unknown option --{name}; " + (f"did you mean --{near[0]}?" if near else "see --help.")
                )
            given[name] = value or " ".join(argv[i + 1 : i + 2])
    try:
        options = parser(function, description).parse_args([*argv]).as_dict()
    except ArgumentError as error:
        message = " ".join(str(error).split())
        named = re.match(r'Parser key "(\w+)"|argument --(\w+)', message)
        if not named:
            raise UserError(f"{message[:1].upper()}{message[1:]}; see --help.") from None
        name = named[1] or named[2]
        kind = schema[name].annotation
        expected = " or ".join(getattr(kind, "__args__", ())) or EXPECTED.get(kind, "a value")
        raise UserError(f"--{name}: found {given.get(name, '')!r}, expected {expected}.") from None
    # Restricted numbers are of classes of their own, which a checkpoint that may hold plain data only would refuse.
    return {k: type(schema[k].default)(v) for k, v in options.items()}
