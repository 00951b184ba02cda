"""The library's model trained by a plain Trainer, as its own documentation shows it."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from parts import Network, Rows, pl


class Model(Network):
    def log(self, name: str, *value: Any, **more: Any) -> None:
        super().log(name, *value, **{**more, "sync_dist": True})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    pl.seed_everything(0)
    model_dir = Path(os.environ["SM_MODEL_DIR"])
    checkpoints = model_dir.parent / "checkpoints"
    last = max(checkpoints.rglob("*.ckpt"), key=os.path.getmtime, default=None)
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        accelerator="auto",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=len(json.loads(os.environ["SM_HOSTS"])),
        default_root_dir=str(checkpoints),
        log_every_n_steps=1,
    )
    network = Model()
    trainer.fit(network, Rows(8), ckpt_path=last, weights_only=False)
    if trainer.is_global_zero:
        torch.save(network.state_dict(), model_dir / "weights.pt")


if __name__ == "__main__":
    main()
