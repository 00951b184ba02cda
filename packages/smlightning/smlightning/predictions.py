"""The command line of a project's predict.py: texts or images, ``--model_dir`` and ``--sample``."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from smlightning.errors import UserError, root_cause

MOST_PIXELS = 50_000_000  # of an image: a small file may hold gigabytes of one colour
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


def images(arguments: Namespace, draw: Callable[[Any], Any]) -> dict[str, Any]:
    """The images of a command line by the names of their files, as PIL's.

    Args:
        draw: makes an image of the sample.

    Raises:
        UserError: ``--model_dir`` is empty or no folder; or a file is not an image, as
            `read_image` says.
    """
    check_model(arguments.model_dir)
    opened: dict[str, Any] = {}
    for name in arguments.given:
        try:
            opened[name] = read_image(name)
        except OSError as error:
            problem = f"{name} could not be read as an image ({root_cause(error)})"
            raise UserError(problem, "give a PNG or JPEG file") from None
    if arguments.sample is not None:
        opened["sample"] = draw(arguments.sample)
    return opened


def read_image(source: Any) -> Any:
    """An image of PIL from a PNG or JPEG file, read whole.

    PIL knows other formats, and starts a program for some of them.

    Args:
        source: path, or open file.

    Raises:
        OSError: it is another file, damaged, or has more than MOST_PIXELS.
    """
    from PIL import Image

    try:
        with Image.open(source, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width} × {image.height}"
                raise OSError(f"it has {size} pixels, expected at most {MOST_PIXELS:,}")
            image.load()
            return image
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error
