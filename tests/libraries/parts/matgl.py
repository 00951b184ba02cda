"""matgl: its MEGNet on 64 small crystals, and their volumes."""

import lightning.pytorch as pl
import numpy as np
import torch
from matgl.ext.pymatgen import Structure2Graph
from matgl.graph.data import MGLDataset, collate_fn_graph
from matgl.models import MEGNet
from matgl.utils.training import ModelLightningModule
from pymatgen.core import Lattice, Structure
from torch.utils.data import DataLoader, Subset

ELEMENTS = ("Na", "Cl")


class Network(ModelLightningModule):
    def __init__(self) -> None:
        sizes = {"hidden_layer_sizes_input": (8, 8), "hidden_layer_sizes_conv": (8, 8, 8)}
        net = MEGNet(4, 8, nblocks=1, cutoff=4.0, element_types=ELEMENTS, **sizes)
        super().__init__(net, lr=0.01)


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.rows = crystals(80)

    def train_dataloader(self) -> DataLoader:
        return self._loader(range(48), shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(range(48, 64))

    def test_dataloader(self) -> DataLoader:
        return self._loader(range(64, 80))

    def _loader(self, rows: range, shuffle: bool = False) -> DataLoader:
        part = Subset(self.rows, rows)
        return DataLoader(part, self.batch_size, shuffle=shuffle, collate_fn=collate_fn_graph)


def crystals(size: int) -> MGLDataset:
    sides = np.random.default_rng(0).uniform(3.2, 3.9, size)
    places = [[0, 0, 0], [0.5, 0.5, 0.5]]
    structures = [Structure(Lattice.cubic(side), ELEMENTS, places) for side in sides]
    return MGLDataset(
        structures=structures,
        labels={"volume": (sides**3 / 50).tolist()},
        converter=Structure2Graph(element_types=ELEMENTS, cutoff=4.0),
        save_cache=False,
    )


def answer(network: Network) -> list[float]:
    graphs, lattices, states, _ = collate_fn_graph([crystals(2)[row] for row in range(2)])
    return network(graphs, lattices, state_attr=states).flatten().tolist()


__all__ = ["Network", "Rows", "answer", "pl", "torch"]
