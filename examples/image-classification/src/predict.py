"""Classify images: `python src/predict.py IMAGE ...`.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`: a request is
one PNG or JPEG file, and the answer is JSON.
"""

import io
import json
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

    net, labels, size = model.load(Path(model_dir))
    return net.to("cuda" if torch.cuda.is_available() else "cpu"), labels, size


def input_fn(body: bytes, content_type: str) -> list[Any]:
    """The one image of a request, as PIL's."""
    return [image_files.read(io.BytesIO(body))]


def predict_fn(images: list[Any], trained: Any) -> list[list[dict[str, Any]]]:
    """The three likeliest labels of each image with their probabilities, likeliest first."""
    import torch

    from images import pixels

    net, labels, size = trained
    answers = []
    for image in images:
        batch = pixels(image, size, size)[None].to(net.device)
        with torch.inference_mode():
            scores, numbers = net(batch).logits.softmax(1)[0].topk(min(3, len(labels)))
        pairs = zip(numbers.tolist(), scores.tolist(), strict=True)
        answers.append([{"label": labels[number], "score": score} for number, score in pairs])
    return answers


def output_fn(answers: list[Any], accept: str) -> str:
    return json.dumps(answers)


def main() -> int:
    arguments = predictions.parser(__doc__, "image", SAMPLE).parse_args()

    def answer() -> None:
        import letters

        images = image_files.opened(arguments, lambda sample: letters.draw(sample, "STIXGeneral"))
        trained = model_fn(arguments.model_dir)
        for name, answers in zip(images, predict_fn([*images.values()], trained), strict=True):
            print(name, *(f"{each['label']} {each['score']:.3f}" for each in answers), sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
