"""Scores simple models on the built-in data; the examples' models should beat them.

    python benchmarks/baselines.py --seed 0

Bits per byte of the language model's test text, by gzip -9 and xz -9, which see all of it, and by
counts of the three bytes before from the training text, mixed with those of shorter contexts as by
Witten and Bell (1991). Accuracy on the test texts of text classification, by a linear model of
hashed character 1- to 3-grams (fastText's, without a hidden layer); the seed is that of
`python src/train.py --seed`, which determines the split.
"""

import gzip
import json
import lzma
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

import common
from common import Run

LONGEST = 3  # bytes before

STORED = """
import numpy, sys
import data
made = data.Data(seed=int(sys.argv[1]))
made.prepare_data()
made.setup()
for split in ("train", "test"):
    numpy.save(f"{split}.npy", made.splits[split].arrays["ids"])
"""
LINEAR = """
import json, sys, zlib
import torch
import data
made = data.Data(seed=int(sys.argv[1]))
epochs, limit, buckets = int(sys.argv[2]), int(sys.argv[3]), 2**18
made.prepare_data()
made.setup()
torch.manual_seed(0)

def grams(rows):
    spans = zip(rows.column("starts").tolist(), rows.column("lengths").tolist())
    for at, length in spans:
        text = f" {bytes(rows.arrays['ids'][at : at + length] - 1).decode('utf-8', 'ignore')} "
        found = [text[i : i + n] for n in (1, 2, 3) for i in range(len(text) - n + 1)]
        yield torch.tensor([zlib.crc32(gram.encode()) % buckets for gram in found])

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.EmbeddingBag(buckets, len(made.labels), mode="mean", sparse=True)
        torch.nn.init.zeros_(self.weights.weight)
    def forward(self, bags):
        starts = torch.tensor([0, *map(len, bags[:-1])]).cumsum(0)
        return self.weights(torch.cat(bags), starts)

def labels(rows):
    return torch.tensor(rows.column("labels").tolist())

net = Linear()
optimizer = torch.optim.SparseAdam(net.parameters(), lr=0.1)
train, truth = list(grams(made.splits["train"])), labels(made.splits["train"])
for epoch in range(epochs):
    for chosen in torch.randperm(len(train))[:limit].split(64):
        optimizer.zero_grad()
        answers = net([train[row] for row in chosen.tolist()])
        torch.nn.functional.cross_entropy(answers, truth[chosen]).backward()
        optimizer.step()
with torch.no_grad():
    right = net(list(grams(made.splits["test"]))).argmax(1) == labels(made.splits["test"])
print(json.dumps(right.float().mean().item()))
"""


def documents(path: Path) -> list[bytes]:
    """The documents of a split of the language model's data."""
    import numpy as np

    ids = np.load(path)  # a document is 0 and its bytes plus one
    parts = np.split(ids, np.flatnonzero(ids == 0))[1:]
    return [(part[1:] - 1).tobytes() for part in parts]


def counts(training: list[bytes]) -> dict[bytes, Counter[int]]:
    """Counts of each byte after each context of at most LONGEST bytes."""
    following: dict[bytes, Counter[int]] = defaultdict(Counter)
    for document in training:
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


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10, help="of the linear model")
    arguments = parser.parse_args()
    seed, limit = str(arguments.seed), 10**9
    if arguments.small:
        arguments.epochs, limit = 1, 640
    found = {}
    with common.folder() as folder:
        project = common.generate(folder)
        script = ["-c", LINEAR, seed, str(arguments.epochs), str(limit)]
        run = Run(project, script).succeed()
        found["linear model: accuracy"] = json.loads(run.text().splitlines()[-1])
        project = common.generate(folder, task="language-model")
        Run(project, ["-c", STORED, seed]).succeed()
        train, test = (documents(project / f"{split}.npy") for split in ("train", "test"))
    whole = b"".join(test)
    found["gzip -9: bits per byte"] = 8 * len(gzip.compress(whole, 9)) / len(whole)
    found["xz -9: bits per byte"] = 8 * len(lzma.compress(whole, preset=9)) / len(whole)
    if arguments.small:
        train, test = train[:5], test[:2]
    following = counts(train)
    bits = 0.0
    for document in test:
        for place, byte in enumerate(document):
            context = document[max(0, place - LONGEST) : place]
            bits -= math.log2(probability(byte, context, following))
    found["counts: bits per byte"] = bits / sum(map(len, test))
    for name, value in found.items():
        print(f"{name} {value:.4f}")
    common.write(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
