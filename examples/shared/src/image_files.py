"""The images that predict.py gets: files of its command line, or the body of a request."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from smlightning import predictions
from smlightning.errors import UserError, root_cause

MOST_PIXELS = 50_000_000  # of an image: a small file may hold gigabytes of one colour


def opened(arguments: Namespace, draw: Callable[[Any], Any]) -> dict[str, Any]:
    """The images of a command line by the names of their files, as PIL's.

    Args:
        arguments: of `predictions.parser`.
        draw: makes an image of the sample.

    Raises:
        UserError: ``--model_dir`` is empty or no folder; or a file is not an image, as `read` says.
    """
    predictions.check_model(arguments.model_dir)
    images: dict[str, Any] = {}
    for name in arguments.given:
        try:
            images[name] = read(name)
        except OSError as error:
            problem = f"{name} could not be read as an image ({root_cause(error)})"
            raise UserError(problem, "give a PNG or JPEG file") from None
    if arguments.sample is not None:
        images["sample"] = draw(arguments.sample)
    return images


def read(source: Any) -> Any:
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
