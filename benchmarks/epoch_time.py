"""Time per epoch of the generated project's training against a hand-written loop, and where the
difference goes.

    make bench                         # 5 rounds of an epoch
    make bench ARGS="--rounds 9"

Every variant trains the same network on the same batches in the same order with the same
optimizer, schedule and clipping, a few steps at a time in turn (turns.py). The variants differ in
what surrounds a step:

    hand         a loop of ten lines
    trainer      Lightning's Trainer, nothing added
    randomness   and the generators seeded before each step
    reporter     and the loss summed, a line and TensorBoard per interval
    train.py     all of it, exactly as `make demo` runs it
    2threads     the loop again, with two of OpenMP's threads; not with the others, whose core the second would take:
                 make bench ARGS="--variants hand 2threads"

What comes after the last step is left out of the time: validation, the test, pictures.
"""

import argparse
import contextlib
import io
import os
import platform
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import turns
from turns import Seat, Turns, optimizer_and_schedule

PROJECT = Path(__file__).parent.parent / "build" / "language-identification"
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "vendor" / "smlightning")]

VARIANTS = ("hand", "trainer", "randomness", "reporter", "train.py", "2threads")


def hand(seat: Seat, batch_size: int, threads: int = 1) -> None:
    """The loop one would write."""
    import torch
    from torch.nn import functional as F

    from data import Data
    from model import ByteCNN

    torch.set_num_threads(threads)  # of the thread that calls
    torch.manual_seed(0)
    data = Data(batch_size=batch_size)
    data.prepare_data()
    data.setup()
    net = ByteCNN(len(data.labels))
    loader = data.train_dataloader()
    total = len(loader)
    optimizer, schedule = optimizer_and_schedule(net, total)
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    for batch in loader:
        seat.step()
        answers = net(batch["input_ids"], batch["attention_mask"])
        losses = F.cross_entropy(answers, batch["label"], reduction="none")
        loss = (losses * batch["weight"]).sum() * batch["scale"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def project(variant: str, seat: Seat, batch_size: int) -> None:
    """`train.py`, with some of its callbacks left out."""
    import pytorch_lightning as pl

    import train
    from smlightning.reports.progress import ProgressReport
    from smlightning.training.buckets import BucketOrder
    from smlightning.training.seeds import StepSeed

    class Sitting(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            seat.step()

        def on_validation_start(self, *_: Any) -> None:
            self.validation = seat.uncounted()
            self.validation.__enter__()

        def on_validation_end(self, *_: Any) -> None:
            self.validation.__exit__(None, None, None)

    kept = {
        "trainer": (),
        "randomness": (StepSeed, BucketOrder),
        "reporter": (StepSeed, BucketOrder, ProgressReport),
    }.get(variant)
    constructor = pl.Trainer

    def made(*args: Any, **kwargs: Any) -> pl.Trainer:
        pl.Trainer = constructor  # type: ignore[misc]  # nobody else's turn comes before this one's first step
        chosen = [c for c in kwargs["callbacks"] if kept is None or isinstance(c, kept)]
        if variant == "trainer":
            kwargs["logger"] = False
        trainer = constructor(*args, **{**kwargs, "callbacks": [Sitting(), *chosen]})
        trainer.test = lambda *_, **__: sys.exit()  # type: ignore[method-assign]
        return trainer

    pl.Trainer = made  # type: ignore[assignment,misc]
    with contextlib.suppress(SystemExit), tempfile.TemporaryDirectory() as output:
        train.train(batch_size=batch_size, output_dir=output, epochs=1, resume="never")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS[:-1])
    args = parser.parse_args()
    if not (PROJECT / "src" / "train.py").is_file():
        sys.exit(f"error: {PROJECT} is not there; make project generates it.")
    os.chdir(PROJECT)
    warnings.simplefilter("ignore")

    import pytorch_lightning
    import torch

    from data import Data

    data = Data(batch_size=args.batch_size)
    data.prepare_data()
    trainings = {
        name: lambda seat, name=name: project(name, seat, args.batch_size) for name in args.variants
    }
    trainings["hand"] = lambda seat: hand(seat, args.batch_size)
    if "2threads" in trainings:
        trainings["2threads"] = lambda seat: hand(seat, args.batch_size, threads=2)
    times: dict[str, list[list[float]]] = {name: [] for name in trainings}
    for number in range(args.rounds):
        with contextlib.redirect_stdout(io.StringIO()):
            seconds = Turns(trainings, seed=number).run()
        for variant, taken in seconds.items():
            times[variant].append(taken)
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)

    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, Lightning {pytorch_lightning.__version__}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {args.rounds} rounds of an epoch"
    )
    turns.compare(times, "hand")


if __name__ == "__main__":
    main()
