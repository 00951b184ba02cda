"""Documents and what is written on them: drawn receipts, a folder, or a data set of the hub.

A folder has images and a file metadata.jsonl, a line for each: {"file_name": "1.png", "total":
"4.20"}. Instead of such fields a line may have Donut's own `ground_truth`.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from options import Options
from receipts import receipts
from smlightning import hub
from smlightning.data import batches
from smlightning.files import json_digest
from tags import TAG, tagged, tokenizer

SPLITS = ("train", "validation", "test")
NO_LABEL = -100  # of transformers


class Data(pl.LightningDataModule):
    """A batch of B documents: ``pixel_values`` (B, 3, height, width) from -1 to 1; ``labels``
    (B, L) the tokens of their texts, then NO_LABEL; ``weight`` and ``scale``: `batches.Share`.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def prepare_data(self) -> None:
        load(self.options)

    def setup(self, stage: str | None = None) -> None:
        self.splits = load(self.options)
        texts = {
            split: [*map(target, self.splits[split].remove_columns("image"))] for split in SPLITS
        }
        self.tags = sorted({tag for text in texts["train"] for tag in re.findall(TAG, text)})
        tokens = tokenizer(self.options.model_name, self.tags)
        chosen: Any = {"truncation": True, "max_length": self.options.max_length}
        chosen["add_special_tokens"] = False
        self.ids: dict[str, list[list[int]]] = {}
        for split in SPLITS:
            ended = [text + tokens.eos_token for text in texts[split]]
            self.ids[split] = tokens(ended, **chosen)["input_ids"]
        self.fingerprint = json_digest(texts)

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("validation")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> DataLoader:
        documents = Documents(self.splits[split], self.ids[split], self.options)
        lengths, chosen = [*map(len, documents.ids)], self.options
        return batches.loader(
            documents, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


@dataclass
class Documents(Dataset):
    """Gathers the rows of a `batches.Share` into the batch that `Data` describes."""

    rows: datasets.Dataset
    ids: list[list[int]]
    options: Options

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, share: batches.Share) -> dict[str, Any]:
        rows, size = share.rows.tolist(), (self.options.height, self.options.width)
        labels = [torch.tensor(self.ids[row]) for row in rows]
        return {
            "pixel_values": torch.stack([pixels(self.rows[row]["image"], *size) for row in rows]),
            "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
            "weight": share.weight(),
            "scale": share.scale,
        }


def pixels(image: Image.Image, height: int, width: int) -> torch.Tensor:
    """(3, height, width) float32 from -1 to 1."""
    array = np.array(image.convert("RGB").resize((width, height)), np.float32)
    return torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1


def load(options: Options) -> datasets.DatasetDict:
    """The splits train, validation and test; a missing one is a tenth of the training documents."""
    datasets.disable_progress_bars()
    cache = {"cache_dir": str(Path(options.data_dir).absolute())}
    name = options.dataset
    if name == "receipts":
        sizes = dict(zip(SPLITS, (options.drawn, 200, 200), strict=True))
        drawn = datasets.DatasetDict()
        for seed, split in enumerate(SPLITS):
            given = {"count": sizes[split], "seed": seed}
            drawn[split] = datasets.Dataset.from_generator(receipts, gen_kwargs=given, **cache)
        return drawn
    if name == "training":
        name = os.environ.get("SM_CHANNEL_TRAINING", name)
    with hub.errors(f"--dataset {options.dataset!r} could not be read", Path(name).exists()):
        splits = datasets.load_dataset(name, **cache)
    for missing in [split for split in SPLITS if split not in splits]:
        parts = splits["train"].train_test_split(0.1, seed=options.seed)
        splits["train"], splits[missing] = parts["train"], parts["test"]
    return splits


def target(row: dict[str, Any]) -> str:
    """The text of a row: its fields, or Donut's ground truth, as tags."""
    fields = {name: value for name, value in row.items() if name != "image"}
    if "ground_truth" in fields:
        fields = json.loads(fields["ground_truth"])["gt_parse"]
    return tagged(fields)
