"""Steps per second with everything on (checkpoints, watch, stop signals, exact randomness), against stock Lightning.

    python benchmarks/steps_per_second.py --ranks 1 2 --rounds 7

The same model and data, CLDR names in batches of 64, a few steps at a time in turn (turns.py). Stock means Trainer's
defaults (bar, summary, ModelCheckpoint, its logger) and `self.log` of the loss in each step, as Lightning's own
examples have it. Ours writes a checkpoint every 50 steps, and what its thread has not written when a turn ends is
waited for in that turn.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import stress
import turns

SCRIPT = """
import json, os, sys
import pytorch_lightning as pl, torch
import dist
from runtime import report
from runtime.progress import Reporter
from runtime.seeds import StepSeed
from runtime.checkpoints import Checkpoints
from data import Data
from model import Model
import turns
from runtime.watchdog import HangWatchdog
from pathlib import Path

report.quiet()

class Sitting(pl.Callback):
    def __init__(self, seat, disk=None):
        self.seat, self.disk = seat, disk
    def on_train_batch_start(self, *_):
        if self.disk and self.seat.steps % turns.STEPS == 0:
            self.disk.finish()  # what is still being written belongs to this turn, not to the next one's
        self.seat.step()

class Logging(Model):
    def training_step(self, batch, i):
        loss = super().training_step(batch, i)
        self.log("train/loss", loss, prog_bar=True, batch_size=64)
        return loss

def fit(seat, kind, turn):
    strategy, devices, num_nodes = dist.get_initialization_info()
    options = dict(accelerator=cluster.accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes,
                   max_steps=200, gradient_clip_val=1.0)
    data = Data(batch_size=64 // cluster.world_size, data_dir="data", num_workers=0)
    outputs = Path(f"{kind}{turn}")
    if kind == "ours":
        kept = Checkpoints(outputs / "checkpoints", {"turn": turn}, 5.0, 50, monitor="val/accuracy")
        mine = [Sitting(seat, kept.disk), HangWatchdog(60.0), StepSeed(0), Reporter(50, outputs), kept]
        logger = pl.loggers.TensorBoardLogger(outputs, name="t", version="")
        trainer = pl.Trainer(callbacks=mine, logger=logger, enable_progress_bar=False, enable_model_summary=False,
                             num_sanity_val_steps=0, **options)
    else:
        trainer = pl.Trainer(callbacks=[Sitting(seat)], use_distributed_sampler=False, num_sanity_val_steps=0,
                             default_root_dir=outputs, **options)
    trainer.fit((Model if kind == "ours" else Logging)(), datamodule=data)

rounds = {"stock": [], "ours": []}
with dist.session() as cluster:
    for turn in range(int(os.environ["ROUNDS"])):
        found = turns.Turns({k: lambda seat, k=k: fit(seat, k, turn) for k in rounds}, turn).run()
        for kind, seconds in found.items():
            rounds[kind].append(seconds)
        print(f"round {turn + 1}", file=sys.stderr, flush=True)
    if cluster.rank == 0:
        json.dump(rounds, open("rounds.json", "w"))
sys.exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    os.environ["ROUNDS"] = str(arguments.rounds)
    for ranks in arguments.ranks:
        folder = Path(tempfile.mkdtemp(prefix="speed-"))
        job = stress.Job(folder, ranks, "forked", {}, SCRIPT)
        done = job.wait(1200)
        job.end()
        if done is None or not (folder / "rounds.json").exists():
            sys.exit(job.text[-3000:])
        print(f"{ranks} ranks, {arguments.rounds} rounds; ", end="")
        turns.compare(json.loads((folder / "rounds.json").read_text()), "stock")


if __name__ == "__main__":
    main()
