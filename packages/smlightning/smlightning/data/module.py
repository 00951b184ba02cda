"""A Lightning data module whose rows lie in a store."""

import abc
from typing import Any

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset

from smlightning.data import batches, store


class StoredData(pl.LightningDataModule, abc.ABC):
    """Opens the store that ``prepare_data`` wrote at ``self.path``, and makes the loaders.

    Args:
        options: has ``dataset``, ``data_dir``, ``batch_size``, ``seed`` and ``num_workers``.
        facts: plain data: everything that determines what ``prepare_data`` writes.

    Attributes:
        splits: rows by split, after `setup`.
        facts: the plain data of `store.write_facts`, after `setup`.
        fingerprint: a digest of all rows and facts, after `setup`; a run resumes only with it.
    """

    def __init__(self, options: Any, facts: list[Any]) -> None:
        super().__init__()
        self.options = options
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.batch_size = options.batch_size  # for the log
        self.splits: dict[str, store.Rows] = {}
        self.facts: dict[str, Any] = {}
        self.fingerprint = ""
        self.path = store.path_for(options.data_dir, options.dataset, facts)

    @abc.abstractmethod
    def dataset(self, split: str) -> Dataset:
        """A data set that makes a batch of a `batches.Share`."""

    def lengths(self, split: str) -> np.ndarray:
        """(N,) tokens of each row: rows of similar length are batched together."""
        return self.splits[split].column("lengths")

    def setup(self, stage: str | None = None) -> None:
        """Open the stored data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            self.facts = store.read_facts(self.path)
            self.fingerprint = store.fingerprint(self.path)
            self.splits = {split: store.Rows(self.path, split) for split in store.SPLITS}

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> DataLoader:
        return batches.loader(
            self.dataset(split),
            self.lengths(split),
            self.options.batch_size,
            self.trainer,
            seed,
            self.options.num_workers,
        )
