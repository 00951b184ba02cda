"""Documents and what is written on them: generated receipts, a folder, or a data set of the hub.

A folder has images and a file metadata.jsonl, a line for each: {"file_name": "1.png", "total":
"4.20"}. Instead of such fields a line may have Donut's own `ground_truth`.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import datasets
import pytorch_lightning as pl
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import images
from options import Options
from receipts import receipts
from smlightning.data import batches
from tags import TAG, tagged, tokenizer

NO_LABEL = -100  # of transformers


class Data(pl.LightningDataModule):
    """A batch of B documents: ``pixel_values`` (B, 3, height, width) from -1 to 1; ``labels``
    (B, L) the tokens of their texts, then NO_LABEL; ``weight`` and ``scale``: `batches.RankBatch`.
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
            split: [*map(target, rows.remove_columns("image"))]
            for split, rows in self.splits.items()
        }
        self.tags = sorted({tag for text in texts["train"] for tag in re.findall(TAG, text)})
        tokens = tokenizer(self.options.model_name, self.tags)
        chosen: Any = {"truncation": True, "max_length": self.options.max_length}
        chosen["add_special_tokens"] = False
        self.ids: dict[str, list[list[int]]] = {}
        for split, given in texts.items():
            ended = [text + tokens.eos_token for text in given]
            self.ids[split] = tokens(ended, **chosen)["input_ids"]
        self.fingerprint = images.fingerprint(self.splits)

    def train_dataloader(self) -> batches.RowLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> batches.RowLoader:
        return self._loader("validation")

    def test_dataloader(self) -> batches.RowLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> batches.RowLoader:
        documents = Documents(self.splits[split], self.ids[split], self.options)
        lengths, chosen = [*map(len, documents.ids)], self.options
        return batches.loader(
            documents, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


@dataclass
class Documents(Dataset):
    """Gathers the rows of a `batches.RankBatch` into the batch that `Data` describes."""

    rows: datasets.Dataset
    ids: list[list[int]]
    options: Options

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: batches.RankBatch) -> dict[str, Any]:
        rows, size = batch.rows.tolist(), (self.options.height, self.options.width)
        pixels = [images.pixels(self.rows[row]["image"], *size) for row in rows]
        labels = [torch.tensor(self.ids[row]) for row in rows]
        return {
            "pixel_values": torch.stack(pixels),
            "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
            "weight": batch.weight(),
            "scale": batch.scale,
        }


def load(options: Options) -> datasets.DatasetDict:
    """The splits train, validation and test; a missing one is a tenth of the training documents."""
    if options.dataset == "receipts":
        counts = (options.num_receipts, 200, 200)
        parts = [{"count": count, "seed": seed} for seed, count in enumerate(counts)]
        given = dict(zip(images.SPLITS, parts, strict=True))
        return images.generate(receipts, given, options.data_dir)
    return images.complete(images.read(options.dataset, options.data_dir), options.seed)


def target(row: dict[str, Any]) -> str:
    """The text of a row: its fields, or Donut's ground truth, as tags."""
    fields = {name: value for name, value in row.items() if name != "image"}
    if "ground_truth" in fields:
        fields = json.loads(fields["ground_truth"])["gt_parse"]
    return tagged(fields)
