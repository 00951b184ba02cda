"""Use a trained model: `python src/predict.py "Île de la Réunion"`, or texts on standard input.

On SageMaker (`smlightning deploy JOB`) the inference image calls this file's `model_fn`,
`input_fn`, `predict_fn` and `output_fn`. A request holds texts as JSON ("…", {"text": "…"}, or a
list of these), JSON lines, or plain lines; the answer to each is a list of
{"label": "…", "score": 0.9}, likeliest first.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from smlightning import predictions
from smlightning.errors import run_command
from smlightning.options import PositiveInt
from smlightning.serving import input_fn, output_fn, rejected, worker_device
from smlightning.terminal import one_line
from smlightning.training import imports

from options import SAMPLE

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict", "predict_fn"]


def model_fn(model_dir: str | Path, context: Any = None) -> Any:
    """The trained model in a folder, on the worker's GPU if it has one; raises UserError."""
    imports.lightning()
    import model

    network, batch, labels = model.load(Path(model_dir))
    return network.to(worker_device(context)), batch, labels


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


def predict_fn(records: list[Any], trained: Any) -> list[list[dict[str, Any]]]:
    """The answer to each record of a request; status 400 if one has no text."""
    texts = []
    for number, record in enumerate(records, 1):
        text = record.get("text") if isinstance(record, dict) else record
        if not isinstance(text, str):
            raise rejected(
                400, f'record {number}: expected a text or {{"text": "..."}}; send one of these'
            )
        # JSON may contain half of a surrogate pair.
        texts.append(text.encode("utf-8", "replace").decode())
    return [
        [{"label": label, "score": score} for label, score in answers]
        for _, answers in predict(texts, trained)
    ]


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
