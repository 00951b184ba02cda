"""scvi-tools: its variational network for single cells, on its own synthetic counts."""

from functools import cache
from typing import Any

import lightning.pytorch as pl
import numpy as np
import scvi
import torch
from scvi.dataloaders import DataSplitter
from scvi.train import TrainingPlan


@cache
def cells() -> scvi.model.SCVI:
    scvi.settings.seed = 0  # or each process splits the cells in another way
    np.random.seed(0)
    counts = scvi.data.synthetic_iid(batch_size=40, n_genes=20, n_proteins=0, n_regions=0)
    scvi.model.SCVI.setup_anndata(counts)
    return scvi.model.SCVI(counts, n_hidden=8, n_latent=2)


class Network(TrainingPlan):
    def __init__(self) -> None:
        super().__init__(cells().module)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        *_, losses = self.forward(batch, loss_kwargs=self.loss_kwargs)
        self.log("elbo_test", losses.loss, batch_size=losses.n_obs_minibatch)


class Rows(DataSplitter):
    def __init__(self, batch_size: int) -> None:
        manager = cells().adata_manager
        super().__init__(manager, train_size=0.6, validation_size=0.2, batch_size=batch_size)


def answer(network: Network) -> list[float]:
    loader = scvi.dataloaders.AnnDataLoader(cells().adata_manager, batch_size=4)
    inputs = network.module._get_inference_input(next(iter(loader)))
    torch.manual_seed(0)
    return network.module.inference(**inputs)["qz"].loc.flatten().tolist()


__all__ = ["Network", "Rows", "answer", "pl"]
