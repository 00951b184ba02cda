"""Ask a trained model: `python src/predict.py "Île de la Réunion"`, or one text a line on standard input.

On SageMaker (`python -m launch deploy JOB`) the inference image calls this file's `model_fn`, `input_fn`, `predict_fn`
and `output_fn`. A request holds texts as JSON ("…", {"text": "…"}, or a list of these), JSON lines, or plain lines; the
answer to each is a list of {"label": "…", "score": 0.9}, likeliest first.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from options import SAMPLE
from runtime import imports
from runtime.report import UserError
from runtime.serving import input_fn, output_fn, refusal

__all__ = ["input_fn", "main", "model_fn", "output_fn", "predict", "predict_fn"]


def model_fn(model_dir: str | Path) -> Any:
    """The trained model in a folder, as `predict` and `predict_fn` take it; on the GPU where there is one.

    Raises:
        UserError: no trained model is there.
    """
    imports.lightning()
    import torch

    import model

    net, batch, labels = model.load(Path(model_dir))
    return net.to("cuda" if torch.cuda.is_available() else "cpu"), batch, labels


def predict(
    texts: Iterable[str], trained: Any, top: int = 3, batch_size: int = 256
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Each text with its ``top`` likeliest labels and their probabilities, likeliest first.

    Texts are read and answered ``batch_size`` at a time, so a stream of any length needs little memory.
    """
    import torch

    import model

    net, batch, labels = trained
    device = next(net.parameters()).device
    remaining = iter(texts)
    while chunk := list(islice(remaining, batch_size)):
        inputs = {name: tensor.to(device) for name, tensor in batch(chunk).items()}
        with torch.inference_mode():
            probabilities = model.logits(net, inputs).softmax(1)
        values, indices = probabilities.topk(min(top, len(labels)))
        for text, row, which in zip(chunk, values.tolist(), indices.tolist(), strict=True):
            yield text, [(labels[i], p) for i, p in zip(which, row, strict=True)]


def predict_fn(records: list[Any], trained: Any) -> list[list[dict[str, Any]]]:
    """The answer to each record of a request; one that holds no text is refused with status 400."""
    texts: list[Any] = [record.get("text") if isinstance(record, dict) else record for record in records]
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise refusal(400, f'record {number} is neither a text nor {{"text": "..."}}; send one of these')
    texts = [text.encode("utf-8", "replace").decode() for text in texts]  # JSON may hold half of a surrogate pair
    return [[{"label": label, "score": p} for label, p in answers] for _, answers in predict(texts, trained)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python src/predict.py", description=__doc__)
    parser.add_argument("text", nargs="*", help="texts to classify; none: one a line from standard input")
    parser.add_argument("--model_dir", type=Path, default=Path("outputs/model"), help="default: %(default)s")
    parser.add_argument("--sample", action="store_true", help=f"the project's sample text: {SAMPLE}")
    parser.add_argument("--top", type=int, default=3, help="answers per text, default: %(default)s")
    args = parser.parse_args()
    args.text += [SAMPLE] * args.sample
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]  # a byte that is no UTF-8 stops no stream
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if args.top < 1:
        parser.error(f"argument --top: found {args.top}, expected 1 or more")
    texts: Iterable[str] = args.text or (line.rstrip("\r\n") for line in sys.stdin)
    by_hand = not args.text and sys.stdin.isatty()
    if by_hand:
        print("One text a line; Ctrl-D ends.", file=sys.stderr)
    try:
        for text, answers in predict(texts, model_fn(args.model_dir), args.top, 1 if by_hand else 256):
            print(text, *(f"{label} {p:.3f}" for label, p in answers), sep="\t", flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
    return 0


if __name__ == "__main__":
    sys.exit(main())
