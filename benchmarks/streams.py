"""Kill trainings whose loaders keep a state of their own, at random steps, and compare what the
resumed ones end with, bit for bit: batches, losses, last and best weights, metrics of the test.

    python benchmarks/streams.py --count 10                        # litdata's and torchdata's, 0 and 2 workers
    python benchmarks/streams.py litdata stream --ranks 2 --workers 0

Needs torchdata and litdata. The loaders are those of tests/package/rank_training.py:

    stream           torchdata's StatefulDataLoader of an IterableDataset with a state
    sized_stream     the same with a length
    unstated_stream  the same without a state: torchdata fetches again what was done
    counting_rows    of data with rows that keep a state
    stateful_rows    of data with rows that draw at random
    litdata          litdata's StreamingDataLoader of a local folder, shuffled

A line for each kind and number of workers; the status is 1 if one run ended otherwise. Recorded in
docs/measurements.md.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT = next(ROOT.glob("{{*}}/src")).parent  # the template's own
TESTS = [ROOT / "tests" / "package", PROJECT / "tests", PROJECT / "src"]
sys.path[:0] = [str(path) for path in [*TESTS, PROJECT / "vendor" / "smlightning"]]

KINDS = ["litdata", "stream", "sized_stream", "unstated_stream", "counting_rows", "stateful_rows"]
ENDLESS = ["stream", "unstated_stream"]  # they have no length


def item(row: int) -> Any:
    """What litdata's folder holds of a row."""
    import torch

    return torch.tensor(row), torch.tensor([row / 7, row / 11, row / 13], dtype=torch.float64)


def write_litdata(folder: Path, rows: int) -> None:
    import litdata

    litdata.optimize(item, list(range(rows)), str(folder), chunk_size=5, num_workers=1)


def trial(kind: str, workers: int, ranks: int, count: int, folder: Path, seed: int) -> bool:
    """Whether all of ``count`` runs that were killed ended as the one that was not."""
    import rank_training

    if kind == "litdata":
        write_litdata(folder / "litdata", rank_training.ROWS)
    per_epoch = rank_training.ROWS // rank_training.SIZE // ranks
    options = {"max_steps": 2 * per_epoch, "epochs": 9} if kind in ENDLESS else {}
    loader = {"kind": kind, "workers": workers, "persistent": False, "options": options}

    def train(name: str, kill_at: int = 0) -> list[dict[str, Any]]:
        body = rank_training.train_with_train_py
        return rank_training.ranks(body, folder / name, ranks, kill_at=kill_at, **loader)

    began = time.perf_counter()
    whole = train("whole")
    steps = len(whole[0]["batches"])
    draw = random.Random(f"{seed} {kind} {workers} {ranks}")
    identical = 0
    for number in range(count):
        kill_at = draw.randint(3, steps - 1)  # with a checkpoint behind it
        train(str(number), kill_at)
        resumed = train(str(number))
        same = all(map(is_same, whole, resumed))
        identical += same
        if not same:
            lines = re.findall("^resume: .*", resumed[0]["log"], re.M)
            print(f"  killed after {kill_at} of {steps} steps: another end; {lines}", flush=True)
    print(
        f"{kind}, {workers} workers, {ranks} ranks: {identical} of {count} bit-identical, killed "
        f"within {steps} steps, {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return identical == count


def is_same(whole: dict[str, Any], resumed: dict[str, Any]) -> bool:
    count = len(resumed["batches"])
    parts = all(resumed[key] == whole[key][-count:] for key in ("batches", "losses"))
    ends = all(resumed[key] == whole[key] for key in ("last", "best", "metrics"))
    return 0 < count < len(whole["batches"]) and parts and ends


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=KINDS, default=["litdata", "stream"])
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    good = True
    for kind in given.kinds:
        for workers in given.workers:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                good &= trial(kind, workers, given.ranks, given.count, place, given.seed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
