"""Read documents: `python src/predict.py IMAGE ...` prints a line of JSON for each.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`: a request is
one PNG or JPEG file, and the answer is JSON.
"""

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import image_files
from options import SAMPLE
from smlightning import predictions
from smlightning.errors import run_command


def model_fn(model_dir: str | Path) -> Any:
    """The trained model in a folder, on a GPU if there is one."""
    import torch

    import model

    net, tokens = model.load(Path(model_dir))
    return net.to("cuda" if torch.cuda.is_available() else "cpu"), tokens


def input_fn(body: bytes, content_type: str) -> list[Any]:
    """The one image of a request, as PIL's."""
    return [image_files.read(io.BytesIO(body))]


def predict_fn(images: list[Any], trained: Any) -> list[Any]:
    """The fields of each document."""
    import torch

    import model
    import tags
    from images import pixels

    net, tokens = trained
    answers = []
    for image in images:
        batch = pixels(image, *net.config.input_size)[None].to(net.device)
        with torch.inference_mode():
            (read,) = model.generate(net, batch, net.config.max_length_of_text)
        text, *_ = tokens.decode(read).partition(tokens.eos_token)
        answers.append(tags.parsed(text))
    return answers


def output_fn(answers: list[Any], accept: str) -> str:
    return json.dumps(answers)


def main() -> int:
    arguments = predictions.parser(__doc__, "image", SAMPLE).parse_args()

    def answer() -> None:
        from receipts import draw

        images = image_files.opened(arguments, lambda sample: draw(sample, random.Random(0)))
        trained = model_fn(arguments.model_dir)
        for name, fields in zip(images, predict_fn([*images.values()], trained), strict=True):
            print(name, json.dumps(fields, ensure_ascii=False), sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
