"""Time per epoch of the generated project's training against a hand-written loop, and where the difference goes.

    make bench                         # 5 rounds, all variants in each, in another order every time
    make bench ARGS="--rounds 9"

Every variant trains the same network on the same batches in the same order with the same optimizer, schedule and
clipping. The variants differ in what surrounds a step:

    hand         a loop of ten lines
    trainer      Lightning's Trainer, nothing added
    randomness   and the generators seeded before each step
    reporter     and the loss summed, a line and TensorBoard per interval
    train.py     all of it, exactly as `make demo` runs it

Validation and the test are left out of the time. Ratios are taken within a round, so that a noisy neighbour hits both.
"""

import argparse
import contextlib
import io
import math
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent / "build" / "language-identification"
sys.path.insert(0, str(PROJECT / "src"))

VARIANTS = ("hand", "trainer", "randomness", "reporter", "train.py")
EPOCHS = 2


def hand(options: dict[str, Any]) -> list[float]:
    """Seconds of each epoch of the loop one would write."""
    import torch
    from data import Data
    from model import ByteCNN
    from torch.nn import functional as F

    torch.manual_seed(0)
    data = Data(batch_size=options["batch_size"])
    data.prepare_data()
    data.setup()
    net = ByteCNN(len(data.labels))
    loader = data.train_dataloader()
    total = len(loader) * EPOCHS
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, fused=True)
    rising = round(total * 0.06)

    def share(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (total - rising)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    seconds = []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        started = time.perf_counter()
        for batch in loader:
            answers = net(batch["input_ids"], batch["attention_mask"])
            losses = F.cross_entropy(answers, batch["label"], reduction="none")
            loss = (losses * batch["weight"]).sum() * batch["scale"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        seconds.append(time.perf_counter() - started)
    return seconds


def project(variant: str, options: dict[str, Any]) -> list[float]:
    """Seconds of each epoch of `train.py`, with some of its callbacks left out."""
    import callbacks
    import pytorch_lightning as pl
    import train

    seconds: list[float] = []

    class Stopwatch(pl.Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self._close()
            self.started, self.aside = time.perf_counter(), 0.0

        def _close(self) -> None:  # here, and not at the epoch's end: what other callbacks do there counts
            if hasattr(self, "started"):
                seconds.append(time.perf_counter() - self.started - self.aside)

        def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.paused = time.perf_counter()

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.aside += time.perf_counter() - self.paused

        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self._close()

    kept = {
        "trainer": (),
        "randomness": (callbacks.Randomness,),
        "reporter": (callbacks.Randomness, callbacks.Reporter),
    }.get(variant)
    constructor = pl.Trainer

    def made(*args: Any, **kwargs: Any) -> pl.Trainer:
        chosen = [c for c in kwargs["callbacks"] if kept is None or isinstance(c, kept)]
        if variant == "trainer":
            kwargs["logger"] = False
        return constructor(*args, **{**kwargs, "callbacks": [Stopwatch(), *chosen]})

    pl.Trainer = made  # type: ignore[assignment,misc]
    try:
        with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as output:
            train.train(**options, output_dir=output, epochs=EPOCHS, resume="never")
    finally:
        pl.Trainer = constructor  # type: ignore[misc]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()
    if not (PROJECT / "src" / "train.py").is_file():
        sys.exit(f"error: {PROJECT} is not there; make project generates it.")
    os.chdir(PROJECT)
    warnings.simplefilter("ignore")

    import pytorch_lightning
    import torch
    from data import Data

    options = {"batch_size": args.batch_size}
    data = Data(batch_size=args.batch_size)
    data.prepare_data()
    data.setup()
    steps = len(data.train_dataloader())
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for number in range(args.rounds):
        order = [*VARIANTS]
        random.Random(number).shuffle(order)
        for variant in order:
            seconds = hand(options) if variant == "hand" else project(variant, options)
            times[variant].append(min(seconds))  # the first epoch of a process warms caches up
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)

    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, Lightning {pytorch_lightning.__version__}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {args.rounds} rounds; {steps} steps an epoch"
    )
    print(f"{'variant':12} {'s/epoch':>8} {'ms/step':>8} {'ratio':>7} {'lowest':>7} {'highest':>8}")
    for variant, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times["hand"], strict=True)]
        middle = statistics.median(taken)
        print(
            f"{variant:12} {middle:8.2f} {1000 * middle / steps:8.2f} {statistics.median(ratios):7.3f} "
            f"{min(ratios):7.3f} {max(ratios):8.3f}"
        )


if __name__ == "__main__":
    main()
