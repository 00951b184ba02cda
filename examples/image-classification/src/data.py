"""Images and their classes: built-in letters, a folder, parquet files, or a data set of the hub.

In a folder each class has a folder of images, perhaps below `train`, `validation` and `test`:
https://huggingface.co/docs/datasets/image_dataset
"""

from dataclasses import dataclass
from typing import Any

import datasets
import pytorch_lightning as pl
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

import images
from letters import LETTERS, TYPEFACES, letters
from options import Options
from smlightning.errors import UserError


class Data(pl.LightningDataModule):
    """Batches are a list: images (B, 3, size, size) from -1 to 1, and classes (B,)."""

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def prepare_data(self) -> None:
        load(self.options)

    def setup(self, stage: str | None = None) -> None:
        self.splits = load(self.options)
        rows = self.splits["train"]
        self.columns = column(rows, datasets.Image), column(rows, datasets.ClassLabel)
        self.labels: list[str] = rows.features[self.columns[1]].names
        self.fingerprint = images.fingerprint(self.splits)

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader("validation")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: str, **more: Any) -> DataLoader:
        rows = Images(self.splits[split], self.columns, self.options, split == "train")
        cuda, workers = torch.cuda.is_available(), self.options.num_workers
        more |= {"num_workers": 2 * cuda if workers < 0 else workers, "pin_memory": cuda}
        return DataLoader(rows, self.options.batch_size, **more)


@dataclass
class Images(Dataset):
    """Items are an image as `images.pixels` returns it, and the number of its class."""

    rows: datasets.Dataset
    columns: tuple[str, str]
    options: Options
    augment: bool

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        record = self.rows[row]
        image, label = record[self.columns[0]], record[self.columns[1]]
        image = image.convert("RGB")
        if self.augment:
            image = augmented(image, self.options)
        size = self.options.image_size
        return images.pixels(image, size, size), label


def augmented(image: Image.Image, options: Options) -> Image.Image:
    """The image rotated, shifted and perhaps mirrored, at random: see docs/data.md."""
    angle, right, down, mirror = (2 * torch.rand(4) - 1).tolist()
    if options.flip and mirror < 0:
        image = ImageOps.mirror(image)
    move = (round(options.shift * right * image.width), round(options.shift * down * image.height))
    corner: Any = image.getpixel((0, 0))
    return image.rotate(options.rotation * angle, translate=move, fillcolor=corner)


def load(options: Options) -> datasets.DatasetDict:
    """The splits train, validation and test; a missing one is a tenth of the training images."""
    if options.dataset == "letters":
        columns = {"image": datasets.Image(), "label": datasets.ClassLabel(names=[*LETTERS])}
        parts = {split: {"typefaces": typefaces} for split, typefaces in TYPEFACES.items()}
        return images.generate(letters, parts, options.data_dir, datasets.Features(columns))
    splits = images.read(options.dataset, options.data_dir)
    label = column(splits["train"], datasets.ClassLabel)
    return images.complete(splits, options.seed, label)


def column(rows: datasets.Dataset, kind: type) -> str:
    """The name of the first column of this kind."""
    for name, feature in rows.features.items():
        if isinstance(feature, kind):
            return name
    raise UserError(
        f"no column of the data is of the kind {kind.__name__}: {rows.features}",
        "give a folder with a folder of images for each class",
    )
