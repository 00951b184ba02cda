"""Ask a trained model: `python src/predict.py "Île de la Réunion"`, or one text a line on standard input."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from options import SAMPLE
from runtime import imports
from runtime.report import UserError


def predict(
    texts: Iterable[str], directory: Path, top: int = 3, batch_size: int = 256
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Each text with its ``top`` likeliest labels and their probabilities, likeliest first.

    Texts are read and answered ``batch_size`` at a time, so a stream of any length needs little memory.

    Raises:
        UserError: no trained model is in ``directory``.
    """
    imports.lightning()
    import torch

    import model

    net, batch, labels = model.load(directory)
    remaining = iter(texts)
    while chunk := list(islice(remaining, batch_size)):
        with torch.inference_mode():
            probabilities = model.logits(net, batch(chunk)).softmax(1)
        values, indices = probabilities.topk(min(top, len(labels)))
        for text, row, which in zip(chunk, values.tolist(), indices.tolist(), strict=True):
            yield text, [(labels[i], p) for i, p in zip(which, row, strict=True)]


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
        for text, answers in predict(texts, args.model_dir, args.top, 1 if by_hand else 256):
            print(text, *(f"{label} {p:.3f}" for label, p in answers), sep="\t", flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
    return 0


if __name__ == "__main__":
    sys.exit(main())
