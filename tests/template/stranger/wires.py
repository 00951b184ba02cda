"""Wires that a job hangs by, each cut by its name: what test_wires.py expects the rehearsal to
see.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from safetensors.torch import save_file
from torch.utils.data import DataLoader

import data
import dist
import model
from smlightning.cluster import session, smddp


def before(cut: set[str]) -> None:
    """Cut what has to be cut before the ranks connect."""
    if "rank-swapped" in cut:
        locate = session.locate

        def swapped(*args: Any) -> Any:
            cluster = locate(*args)
            return dataclasses.replace(cluster, rank=cluster.world_size - 1 - cluster.rank)

        session.locate = swapped  # type: ignore[assignment]
    if "prepare-data-everywhere" in cut:
        setup = data.Data.setup

        def prepare_too(self: data.Data, stage: str) -> None:
            self.prepare_data()
            setup(self, stage)

        data.Data.setup = prepare_too  # type: ignore[method-assign]
    if "data-not-divided" in cut:

        def whole(self: data.Data) -> DataLoader:
            return DataLoader(self.points, self.batch_size)

        data.Data.train_dataloader = whole  # type: ignore[method-assign]
    if "metrics-not-reduced" in cut:
        log = LightningModule.log
        model.Model.log = lambda self, name, value, **_: log(self, name, value)


def strategy(cut: set[str], right: Any, devices: int, num_nodes: int) -> tuple[Any, int, int]:
    """`right`, or the strategy with a wire cut."""
    if "lightning-environment" in cut:  # AWS's snippet, after what smddprun exports
        for name in ("RANK", "LOCAL_RANK"):
            os.environ[name] = os.environ[f"OMPI_COMM_WORLD_{name}"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        env = LightningEnvironment()
        env.world_size = lambda: int(os.environ["WORLD_SIZE"])  # type: ignore[method-assign]
        env.global_rank = lambda: int(os.environ["RANK"])  # type: ignore[method-assign]
        right = DDPStrategy(cluster_environment=env, process_group_backend="gloo")
    if "group-around-prepare-data" in cut:
        smddp.prepare_data_now = lambda strategy: None
    return right, devices, num_nodes


def after(cut: set[str], trained: LightningModule, model_dir: Path) -> None:
    """Cut what has to be cut between `fit` and `test`."""
    if "weights-drift" in cut and dist.get_global_rank() == 1:
        hook = trained.on_test_epoch_end
        trained.on_test_epoch_end = lambda: (hook(), trained.net.bias.data.add_(1))
    if "every-rank-saves-safetensors" in cut:  # writes from Rust
        model_dir.mkdir(parents=True, exist_ok=True)
        save_file(trained.state_dict(), model_dir / "model.safetensors")
    if "every-rank-saves" in cut:
        model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(1, model_dir / f"rank-{dist.get_global_rank()}.pt")
