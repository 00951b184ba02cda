"""Steps per second with everything on (checkpoints, watch, stop signals, exact randomness), against stock Lightning.

    python benchmarks/steps_per_second.py --ranks 1 2 --rounds 7

The same model and data, CLDR names in batches of 64; the two take turns in one process (per rank), since a shared
machine's speed drifts. Stock means Trainer's defaults (bar, summary, ModelCheckpoint, its logger) and `self.log` of
the loss in each step, as Lightning's own examples have it. Ours writes a checkpoint every 50 steps.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import stress

SCRIPT = """
import json, os, sys, time, warnings
import pytorch_lightning as pl, torch
import dist, report
from callbacks import INSTEAD, Randomness, Reporter
from checkpoints import Checkpoints
from data import Data
from model import Model
from watch import Watch
from pathlib import Path

STEPS, SKIPPED = 220, 20
report.quiet()

class Clock(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == SKIPPED:
            self.start = time.perf_counter()
        self.rate = (trainer.global_step - SKIPPED) / (time.perf_counter() - self.start + 1e-9) \\
            if trainer.global_step > SKIPPED else 0

class Logging(Model):
    def training_step(self, batch, i):
        loss = super().training_step(batch, i)
        self.log("train/loss", loss, prog_bar=True, batch_size=64)
        return loss

rates = {"ours": [], "stock": []}
with dist.session() as cluster:
    for turn in range(int(os.environ["ROUNDS"])):
        for kind in (("ours", "stock"), ("stock", "ours"))[turn % 2]:
            strategy, devices, num_nodes = dist.get_initialization_info()
            where = dict(accelerator=cluster.accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes)
            clock, data = Clock(), Data(batch_size=64 // cluster.world_size, data_dir="data", num_workers=0)
            if kind == "ours":
                outputs = Path(f"ours{turn}")
                kept = Checkpoints(outputs / "checkpoints", {"turn": turn}, 5.0, 50)
                mine = [clock, Watch(60.0), Randomness(0), Reporter(50, outputs), kept]
                trainer = pl.Trainer(max_steps=STEPS, callbacks=mine, gradient_clip_val=1.0, **where, **INSTEAD,
                                     logger=pl.loggers.TensorBoardLogger(outputs, name="t", version=""))
                model = Model()
            else:
                trainer = pl.Trainer(max_steps=STEPS, callbacks=[clock], gradient_clip_val=1.0, **where,
                                     use_distributed_sampler=False, num_sanity_val_steps=0, default_root_dir="stock")
                model = Logging()
            trainer.fit(model, datamodule=data)
            rates[kind].append(clock.rate)
    if cluster.rank == 0:
        json.dump(rates, open("rates.json", "w"))
sys.exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    stress.os.environ["ROUNDS"] = str(arguments.rounds)
    for ranks in arguments.ranks:
        folder = Path(tempfile.mkdtemp(prefix="speed-"))
        job = stress.Job(folder, ranks, "forked", {}, SCRIPT)
        done = job.wait(600)
        job.end()
        if done is None or not (folder / "rates.json").exists():
            sys.exit(job.text[-3000:])
        rates = json.loads((folder / "rates.json").read_text())
        ratios = [ours / stock for ours, stock in zip(rates["ours"], rates["stock"], strict=True)]
        middle = {kind: statistics.median(values) for kind, values in rates.items()}
        print(
            f"ranks={ranks}: ours {middle['ours']:.1f} steps/s, stock Lightning {middle['stock']:.1f}; ratio of each "
            f"round's pair: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}, "
            f"{len(ratios)} rounds"
        )


if __name__ == "__main__":
    main()
