"""Molecules as SMILES and a number for each, from a csv: chemprop's data sets and loaders."""

import csv
import itertools
from pathlib import Path
from typing import Any

import torch
from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader
from lightning import pytorch as pl
from rdkit.Chem import Descriptors, MolFromSmiles
from torch.utils.data import DataLoader

from options import Options
from smlightning.data import sources
from smlightning.errors import UserError


class Data(pl.LightningDataModule):
    """A tenth of the molecules for validation, a tenth for the test.

    Batches are chemprop's `TrainingBatch`.

    Attributes:
        scaler: mean and standard deviation of the training targets, after `setup`.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def setup(self, stage: str | None = None) -> None:
        """Make data sets and loaders: a loader made in a hook would get two samplers on two ranks,
        since chemprop passes shuffle and sampler by position (chemprop 2.3.1).
        """
        rows = chains() if self.options.dataset == "chains" else read(self.options)
        points = [MoleculeDatapoint.from_smi(smiles, [target]) for smiles, target in rows]
        order = torch.randperm(len(points)).tolist()  # torch is seeded before each setup
        tenth = max(len(points) // 10, 1)
        parts = order[2 * tenth :], order[:tenth], order[tenth : 2 * tenth]
        train, val, test = (MoleculeDataset([points[row] for row in part]) for part in parts)
        self.scaler = train.normalize_targets()
        val.normalize_targets(self.scaler)
        size = self.options.batch_size
        self.train = build_dataloader(train, size)
        self.val = build_dataloader(val, size, shuffle=False)
        self.test = build_dataloader(test, size, shuffle=False)

    def train_dataloader(self) -> DataLoader:
        return self.train

    def val_dataloader(self) -> DataLoader:
        return self.val

    def test_dataloader(self) -> DataLoader:
        return self.test


def read(options: Options) -> list[tuple[str, float]]:
    """SMILES and numbers of a csv, or of the only csv of the channel.

    Raises:
        UserError: a column is missing, or a row holds no molecule or no number.
    """
    path = Path(options.dataset)
    if options.dataset == "training":
        files = sorted(sources.channel_folder().glob("*.csv"))
        if len(files) != 1:
            raise UserError(
                f"the channel holds {len(files)} csv files; expected one", "send one csv"
            )
        (path,) = files
    if not path.is_file():
        raise UserError(f"{path} is no file", "give a csv with --dataset")
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                rows.append(
                    (molecule(row[options.smiles_column]), float(row[options.target_column]))
                )
            except (KeyError, TypeError, ValueError) as error:
                problem = f"line {number} of {path.name}: {error!r}"
                raise UserError(
                    problem, "give a csv with a SMILES and a number in each row"
                ) from None
    return rows


def molecule(smiles: str) -> str:
    """The SMILES itself.

    Raises:
        ValueError: it is no molecule.
    """
    if not smiles or MolFromSmiles(smiles) is None:
        raise ValueError(f"{smiles} is no molecule")
    return smiles


def chains() -> list[tuple[str, float]]:
    """Chains of three to six atoms, and their masses in daltons."""
    found = []
    for length in (2, 3, 4, 5):
        for atoms in itertools.product("CNO", repeat=length):
            smiles = "".join(atoms) + "C"
            found.append((smiles, Descriptors.MolWt(MolFromSmiles(smiles))))
    return found
