"""Use a trained model: `python src/predict.py "Île de la Réunion"`, or texts on standard input.

On SageMaker (`python -m smlightning deploy JOB`) the inference image calls this file's `model_fn`,
`input_fn`, `predict_fn` and `output_fn`. A request holds texts as JSON ("…", {"text": "…"}, or a
list of these), JSON lines, or plain lines; the answer to each is a list of
{"label": "…", "score": 0.9}, likeliest first.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from options import SAMPLE
from smlightning.errors import run_command
from smlightning.serving import input_fn, output_fn, rejected, worker_device
from smlightning.terminal import one_line
from smlightning.training import imports

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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python src/predict.py", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("text", nargs="*", help="texts to classify; without any, one a line on standard input")
    add("--model_dir", type=Path, default=Path("outputs/model"), help="default: %(default)s")
    add("--sample", action="store_true", help=f"the project's sample text: {SAMPLE}")
    add("--top", type=int, default=3, help="answers per text, default: %(default)s")
    arguments = parser.parse_args()
    if arguments.top < 1:
        parser.error(f"argument --top: found {arguments.top}, expected 1 or more")
    return arguments


def main() -> int:
    arguments = parse()
    texts = [*arguments.text, SAMPLE] if arguments.sample else arguments.text
    # A byte that is not UTF-8 does not end the stream.
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    is_typed = not texts and sys.stdin.isatty()
    if is_typed:
        print("One text a line; Ctrl-D ends.", file=sys.stderr)

    def answer() -> None:
        trained = model_fn(arguments.model_dir)
        lines = texts or (line.rstrip("\r\n") for line in sys.stdin)
        for text, answers in predict(lines, trained, arguments.top, 1 if is_typed else 256):
            print(
                one_line(text),
                *(f"{one_line(label)} {score:.3f}" for label, score in answers),
                sep="\t",
                flush=True,
            )

    return run_command(answer)


if __name__ == "__main__":
    sys.exit(main())
