"""How fast data is prepared and how fast batches come, side by side in one run.

    python benchmarks/preparation.py                                   # 1,000,000 rows, and batches of the example
    python benchmarks/preparation.py --rows 1000000 3000000 10000000
    python benchmarks/preparation.py --before ../other/src             # and another checkout's preparation, in turn

Preparation runs in a process of its own each time: seconds, greatest memory above what the imports need, bytes on disk.
Batches are the same for all: ours by `Data`; a bare numpy gather from the same flat arrays, without DataLoader,
tensors, weights or an order to be made; and `datasets` with a collator that pads, as one would write it. On one core.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"OMP_NUM_THREADS": "1"}
SRC = next(Path(__file__).parent.parent.glob("{{*}}/src"))
WORDS, CLASSES = 16, 10

PREPARE = """
import json, os, sys, time
src, path, place = sys.argv[1:]
sys.path[:0] = [src, os.path.join(src, "..", "vendor", "smlightning")]
import data, datasets

def peak():  # of this process alone: ru_maxrss starts with its parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

made = data.Data(path, data_dir=place)
before, started = peak(), time.perf_counter()
made.prepare_data()
seconds = time.perf_counter() - started
size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(made.path) for name in names)
started = time.perf_counter()
made.prepare_data()
again = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "MiB": (peak() - before) / 1024, "MB": size / 1e6, "again": again * 1000}))
"""


def write_csv(path: Path, rows: int) -> None:
    """Rows of WORDS words of 3 to 8 letters, and one of CLASSES labels."""
    draw = np.random.default_rng(0)
    words = np.array(
        [
            "".join(draw.choice([*"abcdefghijklmnopqrstuvwxyz"], draw.integers(3, 9)))
            for _ in range(5000)
        ]
    )
    with path.open("w") as file:
        file.write("text,label\n")
        for at in range(0, rows, 100_000):
            many = min(100_000, rows - at)
            chosen, labels = (
                words[draw.integers(len(words), size=(many, WORDS))],
                draw.integers(CLASSES, size=many),
            )
            file.writelines(
                f"{' '.join(row)},class {label}\n"
                for row, label in zip(chosen.tolist(), labels.tolist(), strict=True)
            )


def preparation(rows: int, rounds: int, sources: dict[str, Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        write_csv(path, rows)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for number in range(rounds):
            for name, src in sources.items():
                place = f"{folder}/{name}{number}"
                command = [sys.executable, "-c", PREPARE, str(src), str(path), place]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[name].append(json.loads(said.splitlines()[-1]))
                subprocess.run(["rm", "-r", place], check=True)
        print(
            f"\n{rows:,} rows of {WORDS} words, {path.stat().st_size / 1e6:.0f} MB of csv; {rounds} rounds, in turn"
        )
        for name, results in found.items():
            seconds, memory, disk, again = (
                [r[k] for r in results] for k in ("seconds", "MiB", "MB", "again")
            )
            print(
                f"{name:8} {spread(seconds)} s, {max(memory):.0f} MiB above the imports, {disk[0]:.0f} MB on disk "
                f"({disk[0] * 1e6 / path.stat().st_size:.2f} of the csv); opened again in {spread(again)} ms"
            )
        for name in [*found][1:]:
            pairs = zip(found[name], found["ours"], strict=True)
            print(
                f"ours is {spread([a['seconds'] / b['seconds'] for a, b in pairs])} times as fast as {name}"
            )


def loaders(batch_size: int, rounds: int) -> None:
    sys.path[:0] = [str(SRC), str(SRC.parent / "vendor" / "smlightning")]
    import datasets
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from data import Data

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = Data(batch_size=batch_size, data_dir=folder, num_workers=0)
        data.prepare_data()
        data.setup()
        rows = data.splits["train"]
        arrays = {name: rows.arrays[name] for name in ("ids", "starts", "lengths", "labels")}
        order = [chosen[:real] for chosen, real, _ in data.train_dataloader().sampler]  # type: ignore[attr-defined]
        spans = zip(
            arrays["starts"][rows.index].tolist(),
            arrays["lengths"][rows.index].tolist(),
            strict=True,
        )
        lists = [arrays["ids"][start : start + length].tolist() for start, length in spans]
        stock = datasets.Dataset.from_dict(
            {"input_ids": lists, "label": arrays["labels"][rows.index].tolist()}
        )

        def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            ids = pad_sequence([torch.tensor(s["input_ids"]) for s in samples], batch_first=True)
            return {
                "input_ids": ids,
                "attention_mask": (ids > 0).long(),
                "label": torch.tensor([s["label"] for s in samples]),
            }

        def ours() -> int:
            return sum(int(batch["input_ids"].shape[1]) for batch in data.train_dataloader())

        def gather() -> int:
            total = 0
            for chosen in order:
                at = rows.index[chosen]
                starts, lengths = arrays["starts"][at], arrays["lengths"][at]
                column = np.arange(lengths.max())
                mask = column < lengths[:, None]
                ids = np.where(
                    mask,
                    arrays["ids"].take(starts[:, None] + column, mode="clip").astype(np.int64),
                    0,
                )
                batch = {
                    "ids": ids,
                    "mask": mask.astype(np.int64),
                    "label": arrays["labels"][at].astype(np.int64),
                }
                total += batch["ids"].shape[1]
            return total

        def padding_collator() -> int:
            loader = torch.utils.data.DataLoader(
                stock, batch_sampler=[o.tolist() for o in order], collate_fn=collate
            )
            return sum(int(batch["input_ids"].shape[1]) for batch in loader)

        ways: dict[str, Callable[[], int]] = {
            "ours": ours,
            "gather": gather,
            "datasets": padding_collator,
        }
        assert len({way() for way in ways.values()}) == 1, "not the same batches"
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                speeds[name].append(len(rows) / (time.perf_counter() - started))
    print(
        f"\nbatches of {batch_size} of the example, {len(rows):,} samples, one core; {rounds} rounds, in turn"
    )
    for name, values in speeds.items():
        ratios = [mine / other for mine, other in zip(speeds["ours"], values, strict=True)]
        print(f"{name:8} {spread(values, 0)} samples/s; ours is {spread(ratios)} times that")


def spread(values: list[float], digits: int = 2) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--before", type=Path, help="src of another checkout")
    args = parser.parse_args()
    for rows in args.rows:
        preparation(
            rows,
            args.rounds,
            {"ours": SRC, **({"before": args.before.absolute()} if args.before else {})},
        )
    for batch_size in args.batch_size:
        loaders(batch_size, args.rounds)


if __name__ == "__main__":
    main()
