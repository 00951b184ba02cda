"""Bits per byte of what a language model of the built-in text should beat, on its test bytes.

    python benchmarks/language_baselines.py

gzip -9 and xz -9 compress the test text as one file. The count model predicts a byte from the three
before it, by their counts in the training text, mixed with those of shorter contexts as by
Witten and Bell (1991). `make train` of a project with task=language-model prints the model's own.
"""

import gzip
import lzma
import math
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = next(ROOT.glob("{{*}}"))
sys.path[:0] = [
    str(PROJECT / "tasks" / "language-model" / "src"),
    str(PROJECT / "vendor" / "smlightning"),
]

import data  # noqa: E402

LONGEST = 3  # bytes before


def texts(made: data.Data, split: str) -> list[bytes]:
    """The documents of a split."""
    ids = made.splits[split].arrays["ids"].tolist()
    documents: list[bytearray] = []
    for number in ids:
        if number == 0:
            documents.append(bytearray())
        else:
            documents[-1].append(number - 1)
    return [bytes(document) for document in documents]


def counts(documents: list[bytes]) -> dict[bytes, Counter[int]]:
    """How often each byte follows each context of at most LONGEST bytes."""
    following: dict[bytes, Counter[int]] = defaultdict(Counter)
    for document in documents:
        for place, byte in enumerate(document):
            for length in range(min(LONGEST, place) + 1):
                following[document[place - length : place]][byte] += 1
    return following


def probability(byte: int, context: bytes, following: dict[bytes, Counter[int]]) -> float:
    """Witten and Bell: the count, mixed with the shorter context by how many bytes were new."""
    shorter = probability(byte, context[1:], following) if context else 1 / 256
    seen = following.get(context)
    if not seen:
        return shorter
    return (seen[byte] + len(seen) * shorter) / (seen.total() + len(seen))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = data.Data(data_dir=folder)
        made.prepare_data()
        made.setup()
        train, test = texts(made, "train"), texts(made, "test")
    whole = b"".join(test)
    for name, compressed in (
        ("gzip -9", gzip.compress(whole, 9)),
        ("xz -9", lzma.compress(whole, preset=9)),
    ):
        print(f"{name:12} {8 * len(compressed) / len(whole):.3f} bits per byte")
    following = counts(train)
    bits = 0.0
    for document in test:
        for place, byte in enumerate(document):
            context = document[max(0, place - LONGEST) : place]
            bits -= math.log2(probability(byte, context, following))
    print(f"{'count model':12} {bits / len(whole):.3f} bits per byte, of {len(whole):,}")


if __name__ == "__main__":
    main()
