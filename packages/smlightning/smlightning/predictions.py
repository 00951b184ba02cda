"""The command line of a project's predict.py: what to predict, ``--model_dir``, ``--sample``."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smlightning.errors import UserError

HELP = {"text": "texts; without any, one a line on standard input", "image": "image files"}


def parser(description: str | None, kind: str, sample: Any) -> ArgumentParser:
    """The options of every predict.py, which may add its own.

    Args:
        description: the beginning of ``--help``.
        kind: the name of the arguments without an option, such as text, image or row. They are the
            list `given` of the parsed arguments.
        sample: what ``--sample`` predicts.
    """
    made = ArgumentParser(prog="python src/predict.py", description=description, allow_abbrev=False)
    made.add_argument("given", metavar=kind, nargs="*", help=HELP.get(kind, f"each {kind}"))
    made.add_argument(
        "--model_dir", type=Path, default=Path("outputs/model"), help="default: %(default)s"
    )
    made.add_argument(
        "--sample",
        action="store_const",
        const=sample,
        help=f"the project's sample: {sample}".replace("%", "%%"),
    )
    return made


def check_model(directory: Path) -> None:
    """Raise a UserError at once, before torch is imported, if the folder holds nothing."""
    if not directory.is_dir() or not any(directory.iterdir()):
        hint = "train first, or name the folder of a trained model with --model_dir"
        raise UserError(f"{directory} has no trained model", hint)


def texts(arguments: Namespace) -> Iterable[str]:
    """The texts of a command line; without any, the lines of standard input as they come.

    Raises:
        UserError: ``--model_dir`` is empty, or no folder.
    """
    check_model(arguments.model_dir)
    # A byte that is not UTF-8 does not end the stream.
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if arguments.sample is not None:
        return [*arguments.given, arguments.sample]
    if arguments.given:
        return arguments.given
    if sys.stdin.isatty():
        print("One text a line; Ctrl-D ends.", file=sys.stderr)
    return (line.rstrip("\r\n") for line in sys.stdin)
