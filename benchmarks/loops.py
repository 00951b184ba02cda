"""A project's training without train.py, in the same environment: `steps_per_second.py` compares.

cd PROJECT && python .../benchmarks/loops.py WAY [train.py's options]

by hand        a loop over the project's loader
bare Trainer   Lightning's Trainer over the project's loader, with nothing added
saving         a bare Trainer with Lightning's ModelCheckpoint every `--checkpoint_steps`
"""

import math
import os
import sys
from types import SimpleNamespace
from typing import Any

from common import Seat

# isort: off
from watch import Stalls, Turns
import pytorch_lightning as pl
import torch
from data import Data
from model import Model
from options import Options
from smlightning.options import parse_command_line
# isort: on

WAY = sys.argv[1]
RANK, RANKS = (
    int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHARE_OF_WARMUP = 0.06


class Step(torch.nn.Module):
    """The loss of a batch, so that DistributedDataParallel can wrap it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> Any:
        return self.model.training_step(batch, 0)


def by_hand(options: dict[str, Any]) -> None:
    if RANKS > 1:
        torch.distributed.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    torch.manual_seed(0)
    data = Data(**options)
    data.trainer = SimpleNamespace(global_rank=RANK, world_size=RANKS, accumulate_grad_batches=1)
    data.prepare_data()
    data.setup()
    model = Model(**{**options, "compile": False})
    model._trainer = SimpleNamespace(datamodule=data, world_size=RANKS)  # type: ignore[assignment]
    model.configure_model()
    model.to(DEVICE)
    if options["compile"]:
        model.net.compile(dynamic=True)
    step: Any = Step(model)
    if RANKS > 1:
        step = torch.nn.parallel.DistributedDataParallel(step)
    decay = [parameter for parameter in model.net.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.net.parameters() if parameter.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options["lr"], fused=True)
    loader = data.train_dataloader()
    total = options["epochs"] * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, total))
    mixed = DEVICE.type == "cuda" and options["precision"] in ("auto", "bf16-mixed")
    seat = Seat()
    for _ in range(options["epochs"]):
        for batch in loader:
            seat.step()
            there = {
                name: value.to(DEVICE, non_blocking=True) if hasattr(value, "to") else value
                for name, value in batch.items()
            }
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed):
                loss = step(there)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.net.parameters(), options["gradient_clip_val"])
            optimizer.step()
            schedule.step()


def rate(step: int, total: int) -> float:
    """The factor of the learning rate: warm-up, then half a cosine."""
    rising = round(total * SHARE_OF_WARMUP)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / (total - rising))))


def by_trainer(options: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {
        "max_epochs": options["epochs"], "gradient_clip_val": options["gradient_clip_val"],
        "use_distributed_sampler": False, "num_sanity_val_steps": 0, "limit_val_batches": 0,
        "precision": "bf16-mixed" if DEVICE.type == "cuda" else "32-true",
        "default_root_dir": options["output_dir"], "accelerator": "auto", "devices": 1,
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": WAY == "saving",
    }  # fmt: skip
    if RANKS > 1:
        from lightning_fabric.plugins.environments import TorchElasticEnvironment

        chosen |= {"strategy": "ddp", "plugins": [TorchElasticEnvironment()], "devices": RANKS}
    callbacks: list[Any] = [Turns() if WAY != "saving" else Stalls()]
    if WAY == "saving":
        every = options["checkpoint_steps"]
        callbacks.append(pl.callbacks.ModelCheckpoint(every_n_train_steps=every))
    torch.manual_seed(0)
    trainer = pl.Trainer(callbacks=callbacks, **chosen)
    data = Data(**options)
    trainer.fit(Model(**options), datamodule=data)


if __name__ == "__main__":
    given = vars(parse_command_line(Options, sys.argv[2:]))
    by_hand(given) if WAY == "by hand" else by_trainer(given)
