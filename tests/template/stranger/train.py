"""Somebody else's entry point: argparse, a plain Trainer, and `dist` for the cluster."""

import argparse
import os
import sys
from pathlib import Path

import torch
import wires
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint

import dist
from data import Data
from model import Model
from smlightning.errors import UserError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--wires", default="none", help="which ones to cut, see wires.py")
    args = parser.parse_args()
    cut = set(args.wires.split(","))
    model_dir = Path(os.environ.get("SM_MODEL_DIR", "outputs"))
    wires.before(cut)
    with dist.session() as cluster:
        seed_everything(1)
        strategy, devices, num_nodes = wires.strategy(cut, *dist.get_initialization_info())
        trainer = Trainer(
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            accelerator=cluster.accelerator,
            use_distributed_sampler=False,
            max_epochs=args.epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[ModelCheckpoint(model_dir.parent / "checkpoints")],
        )
        model, data = Model(), Data()
        trainer.fit(model, datamodule=data)
        wires.after(cut, model, model_dir)
        trainer.test(model, datamodule=data, verbose=False)
        if dist.get_global_rank() == 0:
            model_dir.mkdir(parents=True, exist_ok=True)
            torch.save(model.net.state_dict(), model_dir / "weights.pt")
            print(f"test/loss {trainer.callback_metrics['test/loss']:.4f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
