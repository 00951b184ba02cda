"""What the checks of training, and what is drawn per row, cost: CPU time of each as a share of a
step of the example's network.

    OMP_NUM_THREADS=1 python benchmarks/checks.py --rounds 200
    OMP_NUM_THREADS=1 python benchmarks/checks.py --starts 8       # whole trainings of one step

Each part is measured once in every round, in turn with a step, in CPU seconds of its thread;
printed are medians with quartiles. Then weights of --gigabytes are compared as after an epoch.
Recorded in docs/measurements.md.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROJECT = next(Path(__file__).resolve().parents[1].glob("{{*}}/src")).parent
sys.path[:0] = [str(PROJECT / "vendor" / "smlightning"), str(PROJECT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from smlightning.data import draws  # noqa: E402
from smlightning.training import equality  # noqa: E402
from smlightning.training.checks import training_checks  # noqa: E402
from smlightning.training.seeds import StepSeed  # noqa: E402

BATCH, LENGTH = 64, 20  # of the example: CLDR names


class Plain(Dataset):
    """Rows that draw nothing."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, row: int) -> int:
        return row


class Drawing(Plain):
    """Rows that draw from each generator."""

    def __getitem__(self, row: int) -> int:
        return row + int(torch.rand(()) + np.random.rand() + random.random() > 9)


def example() -> Callable[[], Any]:
    """A step of its network."""
    from model import ByteCNN

    network = ByteCNN(30)
    optimizer = torch.optim.AdamW(network.parameters())
    ids = torch.randint(1, 200, (BATCH, LENGTH))
    mask, labels = torch.ones_like(ids), torch.randint(0, 30, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(ids, mask), labels).backward()
        optimizer.step()

    return step


def hooks() -> Callable[[], Any]:
    """Of the checks and of StepSeed, around one step after the first epoch's."""
    callbacks: list[Any] = training_checks()
    module = SimpleNamespace(automatic_optimization=True)
    epoch_loop = SimpleNamespace(total_batch_idx=7, batch_idx=7)
    trainer: Any = SimpleNamespace(
        world_size=2,
        global_rank=0,
        is_last_batch=False,
        strategy=SimpleNamespace(root_device=torch.device("cpu"), model=None),
        fit_loop=SimpleNamespace(epoch_loop=epoch_loop),
        train_dataloader=[],
    )
    for check in callbacks:
        check.done = check.has_loss = True
        check.compared = {"training"}

    def step() -> None:
        for callback in callbacks:
            callback.on_train_batch_start(trainer, module, None, 7)
        for callback in callbacks:
            callback.on_train_batch_end(trainer, module, {"loss": 1}, None, 7)

    return step


def seeding() -> Callable[[], Any]:
    """What StepSeed does in a step."""
    callback, trainer = (
        StepSeed(1),
        SimpleNamespace(
            global_rank=0,
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=7, batch_idx=7)),
        ),
    )

    def step() -> None:
        callback.on_train_batch_start(trainer, None, None, 7)  # type: ignore[arg-type]
        callback.on_train_batch_end(trainer)  # type: ignore[arg-type]

    return step


def batches_of(dataset: Dataset, exact: bool, sketched: bool = False) -> Callable[[], Any]:
    """Batches of an ordinary loader, as it is or as a training has it."""
    loader: Any = DataLoader(dataset, BATCH, shuffle=True)
    if exact:
        loader = draws.exact_loader(loader, draws.Start, 1, 0, True, 2 if sketched else 1)
    iterator = iter(loader)
    return lambda: next(iterator)


def seconds(part: Callable[[], Any], times: int = 1) -> float:
    began = time.thread_time()
    for _ in range(times):
        part()
    return (time.thread_time() - began) / times


def compare_weights(gigabytes: float) -> float:
    """CPU seconds of the checksums of so many bytes of weights."""
    tensors = [torch.rand(2**26) for _ in range(max(1, round(gigabytes * 4)))]  # 256 MiB each
    return seconds(lambda: [equality.checksum(tensor) for tensor in tensors])


START = """
import sys, train
folder, checks = sys.argv[1:]
if checks == "without":
    train.training_checks = list
train.train(
    dataset=folder + "/words.csv", data_dir=folder + "/prepared", output_dir=folder + "/outputs",
    max_steps=1, resume="never",
)
"""


def start(folder: Path, checks: str, ranks: int) -> float:
    """CPU seconds of a training of one step on so many ranks, from start to end."""
    command = [sys.executable, str(folder / "start.py"), str(folder), checks]
    if ranks > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_starts(rounds: int, ranks: int) -> None:
    """Trainings of one step with the checks and without, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "start.py").write_text(START)
        rows = [f"{'abc'[number % 3] * 5}{number},{number % 3}" for number in range(300)]
        (folder / "words.csv").write_text("\n".join(["text,label", *rows]))
        start(folder, "with", ranks)  # prepares the data
        took: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(rounds):
            for checks, seconds_of in took.items():
                seconds_of.append(start(folder, checks, ranks))
    for checks, seconds_of in took.items():
        low, middle, high = statistics.quantiles(seconds_of, n=4)
        print(
            f"one step on {ranks} ranks {checks} checks: {middle:.2f} s ({low:.2f} to {high:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--starts", type=int, default=0, help="trainings of one step to compare")
    given = parser.parse_args()
    if given.starts:
        for ranks in (1, 2):
            compare_starts(given.starts, ranks)
        return
    torch.set_num_threads(1)
    parts = {
        "a step": example(),
        "hooks of the checks": hooks(),
        "StepSeed": seeding(),
        "a loader of rows, plain": batches_of(Plain(), False),
        "the same, rows seeded": batches_of(Plain(), True),
        "the same, rows noted (first epoch)": batches_of(Plain(), True, True),
        "rows that draw, plain": batches_of(Drawing(), False),
        "rows that draw, seeded": batches_of(Drawing(), True),
    }
    for part in parts.values():  # warm
        seconds(part, 3)
    took: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(given.rounds):
        for name, part in parts.items():
            took[name].append(seconds(part))
    step = statistics.median(took["a step"])
    for name, times in took.items():
        low, middle, high = statistics.quantiles(times, n=4)
        print(
            f"{name:36s} {1e6 * middle:8.1f} us ({1e6 * low:.1f} to {1e6 * high:.1f})"
            f"  {100 * middle / step:6.2f} % of a step"
        )
    print(f"weights of {given.gigabytes} GiB: {compare_weights(given.gigabytes):.2f} s, once")


if __name__ == "__main__":
    main()
