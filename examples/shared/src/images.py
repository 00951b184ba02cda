"""Data sets with images, as Hugging Face's `datasets` reads them: files, the hub, or generated."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from smlightning import hub
from smlightning.errors import UserError

SPLITS = ("train", "validation", "test")  # as `datasets` names them


def read(dataset: str, data_dir: str) -> datasets.DatasetDict:
    """The splits of a folder, of the job's channel ``training``, or of a data set on the hub.

    Args:
        data_dir: where `datasets` writes what it has prepared.

    Raises:
        UserError: the data is unavailable or invalid.
    """
    datasets.disable_progress_bars()
    name = os.environ.get("SM_CHANNEL_TRAINING", dataset) if dataset == "training" else dataset
    with hub.errors(f"--dataset {dataset!r} could not be read", Path(name).exists()):
        return datasets.load_dataset(name, cache_dir=str(Path(data_dir).absolute()))


def generate(
    rows: Callable[..., Iterator[dict[str, Any]]],
    arguments: Mapping[str, dict[str, Any]],
    data_dir: str,
    features: Any = None,
) -> datasets.DatasetDict:
    """Splits of the rows that a function yields for the arguments of each split."""
    datasets.disable_progress_bars()
    splits = datasets.DatasetDict()
    for split, given in arguments.items():
        splits[split] = datasets.Dataset.from_generator(
            rows, features, cache_dir=str(Path(data_dir).absolute()), gen_kwargs=given
        )
    return splits


def complete(
    splits: datasets.DatasetDict, seed: int, label: str | None = None
) -> datasets.DatasetDict:
    """The three SPLITS; each that is missing gets a tenth of the training rows.

    Args:
        label: the column of classes, if each class is to give a tenth.

    Raises:
        UserError: there are too few rows, or of a class.
    """
    rows = dict(splits)
    if "train" not in rows:
        raise UserError(
            f"the data has the splits {', '.join(rows)}; expected train", "rename one of them"
        )
    for missing in [split for split in SPLITS if split not in rows]:
        try:
            parts = rows["train"].train_test_split(0.1, seed=seed, stratify_by_column=label)
        except ValueError as error:  # too few rows, or of a class
            raise UserError(
                f"the training data cannot be divided to make the split {missing} ({error})",
                f"give a split {missing}, or more rows of each class",
            ) from None
        rows["train"], rows[missing] = parts["train"], parts["test"]
    return datasets.DatasetDict({split: rows[split] for split in SPLITS})


def fingerprint(splits: datasets.DatasetDict) -> str:
    """A digest of the rows that opens no image: name and size of its file count."""
    found = hashlib.sha256()
    for split, rows in splits.items():
        for name, feature in rows.features.items():
            if isinstance(feature, datasets.Image):
                rows = rows.cast_column(name, datasets.Image(decode=False))
        for row in rows:
            values = {name: _size(value) for name, value in row.items()}
            found.update(repr((split, values)).encode())
    return found.hexdigest()


def _size(value: Any) -> Any:
    """Name and size of an image that was not decoded; another value as it is."""
    if not isinstance(value, dict) or value.keys() != {"bytes", "path"}:
        return value
    path = Path(value["path"] or "")
    content = value["bytes"]
    return path.name, path.stat().st_size if content is None else len(content)


def pixels(image: Any, height: int, width: int) -> torch.Tensor:
    """An image of PIL as (3, height, width) float32 from -1 to 1."""
    array = np.array(image.convert("RGB").resize((width, height)), np.float32)
    return torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1
