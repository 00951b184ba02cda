"""A regression data set that prepare_data writes to disk, as a download would."""

from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Data(LightningDataModule):
    """256 points of a noiseless linear map; the rank's share is drawn by torch's own sampler."""

    def __init__(self, path: str = "points.pt", batch_size: int = 16) -> None:
        super().__init__()
        self.path, self.batch_size = Path(path), batch_size

    def prepare_data(self) -> None:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(256, 8, generator=generator)
        torch.save((x, x @ torch.arange(8.0)), self.path)

    def setup(self, stage: str) -> None:
        self.points = TensorDataset(*torch.load(self.path))

    def train_dataloader(self) -> DataLoader:
        trainer = self.trainer
        assert trainer is not None
        sampler = DistributedSampler(self.points, trainer.world_size, trainer.global_rank, seed=3)
        return DataLoader(self.points, self.batch_size, sampler=sampler)

    val_dataloader = test_dataloader = train_dataloader
