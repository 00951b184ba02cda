"""Classify images: `python src/predict.py IMAGE ...`.

A deployed model answers a request of one image, as image/png or image/jpeg, in the same form.
"""

import argparse
import io
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

    net, labels, size = model.load(Path(model_dir))
    return net.to(worker_device(context)), labels, size


def input_fn(body: bytes, content_type: str | None) -> list[Any]:
    """The image in a request; status 400 if there is none."""
    from PIL import Image

    try:
        return [Image.open(io.BytesIO(body))]
    except OSError:
        raise rejected(400, "the body is not an image; send a PNG or JPEG file") from None


def predict_fn(images: list[Any], trained: Any) -> list[list[dict[str, Any]]]:
    """The three likeliest labels of each image with their probabilities, likeliest first."""
    import torch

    import data

    net, labels, size = trained
    answers = []
    for image in images:
        batch = data.pixels(image, size)[None].to(net.device)
        with torch.inference_mode():
            scores, numbers = net(batch).logits.softmax(1)[0].topk(min(3, len(labels)))
        pairs = zip(numbers.tolist(), scores.tolist(), strict=True)
        answers.append([{"label": labels[number], "score": score} for number, score in pairs])
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python src/predict.py", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("image", nargs="*", type=Path, help="image files")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"))
    parser.add_argument("--sample", action="store_true", help=f"classify a drawn {SAMPLE}")
    arguments = parser.parse_args()

    def answer() -> None:
        from PIL import Image

        import letters

        trained = model_fn(arguments.model_dir)
        images: dict[str, Any] = {str(path): Image.open(path) for path in arguments.image}
        if arguments.sample:
            images[SAMPLE] = letters.draw(SAMPLE, "STIXGeneral")
        for name, answers in zip(images, predict_fn([*images.values()], trained), strict=True):
            print(name, *(f"{each['label']} {each['score']:.3f}" for each in answers), sep="\t")

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
