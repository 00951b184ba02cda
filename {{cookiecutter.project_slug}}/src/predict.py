"""Use a trained model: `python src/predict.py "Île de la Réunion"`, or texts on standard input.

SageMaker's inference image calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`
(docs/recipes.md). A request is a text or a list of texts in JSON; the answer to each is a list of
{"label": "…", "score": 0.9}, likeliest first.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from smlightning import predictions
from smlightning.errors import run_command
from smlightning.options import PositiveInt
from smlightning.terminal import one_line

from options import SAMPLE


def model_fn(model_dir: str | Path) -> Any:
    """The trained model in a folder, on a GPU if there is one; raises UserError."""
    import torch

    import model

    network, batch, labels = model.load(Path(model_dir))
    return network.to("cuda" if torch.cuda.is_available() else "cpu"), batch, labels


def predict(
    texts: Iterable[str], trained: Any, top: int = 3, batch_size: int = 256
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Each text with its `top` likeliest labels and their probabilities, likeliest first.

    Texts are read `batch_size` at a time, so a stream of any length needs little memory.
    """
    import torch

    import model

    network, batch, labels = trained
    device = next(network.parameters()).device
    remaining = iter(texts)
    while chunk := list(islice(remaining, batch_size)):
        inputs = {name: tensor.to(device) for name, tensor in batch(chunk).items()}
        with torch.inference_mode():
            probabilities = model.logits(network, inputs).softmax(1)
        scores, indices = probabilities.topk(min(top, len(labels)))
        for text, row, row_indices in zip(chunk, scores.tolist(), indices.tolist(), strict=True):
            yield text, [(labels[i], score) for i, score in zip(row_indices, row, strict=True)]


def input_fn(body: str | bytes, content_type: str) -> list[str]:
    """The texts of a request.

    Raises:
        ValueError: the body is not JSON, or holds something else than texts.
    """
    found = json.loads(body)
    texts = found if isinstance(found, list) else [found]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('expected a text or a list of texts, as in ["Mittwoch"]')
    # JSON may contain half of a surrogate pair.
    return [text.encode("utf-8", "replace").decode() for text in texts]


def predict_fn(texts: list[str], trained: Any) -> list[list[dict[str, Any]]]:
    """The answer to each text of a request."""
    return [
        [{"label": label, "score": score} for label, score in answers]
        for _, answers in predict(texts, trained)
    ]


def output_fn(answers: list[Any], accept: str) -> str:
    return json.dumps(answers)


def main() -> int:
    parser = predictions.parser(__doc__, "text", SAMPLE)
    parser.add_argument("--top", type=PositiveInt, default=3, help="answers: %(default)s per text")
    arguments = parser.parse_args()

    def answer() -> None:
        texts = predictions.texts(arguments)
        trained = model_fn(arguments.model_dir)
        batch_size = 1 if sys.stdin.isatty() else 256  # who types wants an answer to each line
        for text, answers in predict(texts, trained, arguments.top, batch_size):
            print(
                one_line(text),
                *(f"{one_line(label)} {score:.3f}" for label, score in answers),
                sep="\t",
                flush=True,
            )

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
