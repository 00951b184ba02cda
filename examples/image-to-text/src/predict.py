"""Read documents: `python src/predict.py IMAGE ...` prints a line of JSON for each.

A deployed model answers a request of one image, as image/png or image/jpeg, in the same form.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning import predictions
from smlightning.errors import run_command
from smlightning.serving import image_input_fn as input_fn
from smlightning.serving import output_fn, worker_device
from smlightning.training import imports

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict_fn"]


def model_fn(model_dir: str | Path, context: Any = None) -> Any:
    """The trained model in a folder, on a GPU if there is one."""
    imports.lightning()
    import model

    net, tokens = model.load(Path(model_dir))
    return net.to(worker_device(context)), tokens


def predict_fn(images: list[Any], trained: Any) -> list[Any]:
    """The fields of each document."""
    import torch

    import model
    import tags
    from smlightning.data.images import pixels

    net, tokens = trained
    answers = []
    for image in images:
        batch = pixels(image, *net.config.input_size)[None].to(net.device)
        with torch.inference_mode():
            (read,) = model.generate(net, batch, net.config.max_length_of_text)
        text, *_ = tokens.decode(read).partition(tokens.eos_token)
        answers.append(tags.parsed(text))
    return answers


def main() -> int:
    arguments = predictions.parser(__doc__, "image", SAMPLE).parse_args()

    def answer() -> None:
        from receipts import draw

        images = predictions.images(arguments, lambda sample: draw(sample, random.Random(0)))
        trained = model_fn(arguments.model_dir)
        for name, fields in zip(images, predict_fn([*images.values()], trained), strict=True):
            print(name, json.dumps(fields, ensure_ascii=False), sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
