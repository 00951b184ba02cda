"""Read documents: `python src/predict.py IMAGE ...` prints a line of JSON for each.

A deployed model answers a request of one image, as image/png or image/jpeg, in the same form.
"""

import argparse
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning.errors import run_command
from smlightning.serving import output_fn, rejected, worker_device
from smlightning.training import imports

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict_fn"]


def model_fn(model_dir: str | Path, context: Any = None) -> Any:
    """The trained model in a folder, on a GPU if there is one."""
    imports.lightning()
    import model

    net, tokens = model.load(Path(model_dir))
    return net.to(worker_device(context)), tokens


def input_fn(body: bytes, content_type: str | None) -> list[Any]:
    """The image in a request; status 400 if there is none."""
    from PIL import Image

    try:
        return [Image.open(io.BytesIO(body))]
    except OSError:
        raise rejected(400, "the body is not an image; send a PNG or JPEG file") from None


def predict_fn(images: list[Any], trained: Any) -> list[Any]:
    """The fields of each document."""
    import torch

    import data
    import model
    import tags

    net, tokens = trained
    answers = []
    for image in images:
        batch = data.pixels(image, *net.config.input_size)[None].to(net.device)
        with torch.inference_mode():
            (read,) = model.generate(net, batch, net.config.max_length_of_text)
        text, *_ = tokens.decode(read).partition(tokens.eos_token)
        answers.append(tags.parsed(text))
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python src/predict.py", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("image", nargs="*", type=Path, help="image files")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"))
    parser.add_argument("--sample", action="store_true", help=f"read a drawn receipt: {SAMPLE}")
    arguments = parser.parse_args()

    def answer() -> None:
        from PIL import Image

        from receipts import draw

        trained = model_fn(arguments.model_dir)
        images: dict[str, Any] = {str(path): Image.open(path) for path in arguments.image}
        if arguments.sample:
            images["sample"] = draw(SAMPLE, random.Random(0))
        for name, fields in zip(images, predict_fn([*images.values()], trained), strict=True):
            print(name, json.dumps(fields, ensure_ascii=False), sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
