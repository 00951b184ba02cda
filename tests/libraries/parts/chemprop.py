"""chemprop: its message passing network on 64 molecules made of a few atoms; their masses."""

import itertools

import torch
from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader
from chemprop.models import MPNN
from chemprop.nn import BondMessagePassing, MeanAggregation, RegressionFFN
from chemprop.nn.metrics import RMSE
from lightning import pytorch as pl
from rdkit import RDLogger
from rdkit.Chem import Descriptors, MolFromSmiles
from torch.utils.data import DataLoader

RDLogger.DisableLog("rdApp.*")
SMILES = ["".join(atoms) + "O" for atoms in itertools.product("CNCO", repeat=3)]


class Network(MPNN):
    def __init__(self) -> None:
        passing = BondMessagePassing(d_h=16, depth=2)
        head = RegressionFFN(input_dim=16, hidden_dim=16)
        super().__init__(passing, MeanAggregation(), head, metrics=[RMSE()])


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Make the loaders here: in a hook, Lightning would give them a sampler twice."""
        points = [MoleculeDatapoint.from_smi(smiles, [mass(smiles)]) for smiles in SMILES]
        parts = points[:48], points[48:56], points[56:]
        self.loaders = [
            build_dataloader(MoleculeDataset(part), self.batch_size, shuffle=part is parts[0])
            for part in parts
        ]

    def train_dataloader(self) -> DataLoader:
        return self.loaders[0]

    def val_dataloader(self) -> DataLoader:
        return self.loaders[1]

    def test_dataloader(self) -> DataLoader:
        return self.loaders[2]


def mass(smiles: str) -> float:
    return Descriptors.MolWt(MolFromSmiles(smiles)) / 50 - 1


def answer(network: Network) -> list[float]:
    rows = Rows(8)
    rows.setup("test")
    batch, *_ = next(iter(rows.test_dataloader()))
    return network(batch).flatten().tolist()


__all__ = ["Network", "Rows", "answer", "pl", "torch"]
