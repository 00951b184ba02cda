"""How long a checkpoint holds up training, and how many bytes it writes, against the plain way.

    python benchmarks/checkpoints.py --gigabytes 1 --rounds 5

Plain: a copy into new memory each time, the best weights copied and written with every checkpoint, the file read again
for its checksum. Ours: `checkpoints.writer.CheckpointWriter` as training uses it. In turns, a ratio for each round.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(next(ROOT.glob("{{*}}/vendor/smlightning"))))
from smlightning.training import imports  # noqa: E402

imports.lightning()
import torch  # noqa: E402

from smlightning.checkpoints.position import Position  # noqa: E402
from smlightning.checkpoints.writer import CheckpointWriter  # noqa: E402
from smlightning.files import digest  # noqa: E402


def state(gigabytes: float) -> dict:
    """Weights and AdamW's two moments, so many bytes in all; as many tensors as a model of a few layers has."""
    size = int(gigabytes * 1e9 / 3 / 4 / 40)
    parts = {
        part: {f"layer{i}": torch.randn(size) for i in range(40)}
        for part in ("state_dict", "first", "second")
    }
    return {
        "state_dict": parts["state_dict"],
        "optimizer_states": [parts["first"], parts["second"]],
    }


def plain_copy(tree: object) -> object:
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: plain_copy(value) for key, value in tree.items()}
    return [plain_copy(value) for value in tree]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    content = state(arguments.gigabytes)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    ours = CheckpointWriter(folder / "ours")
    ours.keep_best(content["state_dict"])
    best = plain_copy(content["state_dict"])
    ratios, written = [], []
    print(
        f"{arguments.gigabytes:g} GB of state; seconds that training waits, seconds until the file is there, bytes"
    )
    for number in range(arguments.rounds + 1):
        started = time.perf_counter()
        kept = plain_copy({**content, "best": best})
        blocked = time.perf_counter() - started
        torch.save(kept, folder / "plain.ckpt")
        digest(folder / "plain.ckpt")
        plain = blocked, time.perf_counter() - started
        del kept
        before = {p: p.stat().st_mtime_ns for p in (folder / "ours").glob("*.ckpt")}
        started = time.perf_counter()
        ours.write(content, Position(step=number))
        blocked = time.perf_counter() - started
        ours.finish()
        mine = blocked, time.perf_counter() - started
        new = sum(p.stat().st_size for p in (folder / "ours").glob("*.ckpt") if p not in before)
        size = (folder / "plain.ckpt").stat().st_size
        print(
            f"round {number}{' (first)' if not number else ''}: plain {plain[0]:.3f} {plain[1]:.2f} {size}; "
            f"ours {mine[0]:.3f} {mine[1]:.2f} {new}",
            flush=True,
        )
        if number:  # the first takes new memory in both, and writes the best weights
            ratios.append(mine[0] / plain[0])
            written.append(new / size)
    print(
        f"ratio of the waiting: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"of the bytes: {statistics.median(written):.3f}"
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
