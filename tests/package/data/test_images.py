"""Data sets with images are read from the channel, and get the splits that they lack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from smlightning.data import images
from smlightning.errors import UserError

CLASSES = ["dark", "light"]


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's channel: 20 dark and 10 light images of different grey, for training."""
    for number in range(30):
        folder = tmp_path / "train" / CLASSES[number >= 20]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), 5 * number).save(folder / f"{number}.png")
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(tmp_path))
    return tmp_path


def greys(rows: datasets.Dataset) -> set[int]:
    return {row["image"].getpixel((0, 0)) for row in rows}


@pytest.mark.parametrize("seed", range(4))
def test_missing_splits_get_a_tenth_of_each_class(seed: int, channel: Path) -> None:
    splits = images.complete(images.read("training", "prepared"), seed, "label")
    assert [*splits] == ["train", "validation", "test"]
    assert [len(rows) for rows in splits.values()] == [24, 3, 3]
    assert set.union(*map(greys, splits.values())) == {5 * number for number in range(30)}
    assert [sum(rows["label"]) for rows in splits.values()] == [8, 1, 1]


def test_data_without_a_split_for_training_is_an_error(channel: Path) -> None:
    (channel / "train").rename(channel / "test")
    with pytest.raises(UserError, match="has only test; add a split train"):
        images.read(str(channel), "prepared")


def rows_of(grey: int) -> Iterator[dict[str, Any]]:
    yield {"image": Image.fromarray(np.array([[grey], [255]], np.uint8))}


def test_splits_are_generated_and_pixels_go_from_minus_one_to_one(tmp_path: Path) -> None:
    splits = images.generate(rows_of, {"train": {"grey": 0}, "test": {"grey": 51}}, str(tmp_path))
    black, grey = (images.pixels(splits[split][0]["image"], 2, 4) for split in ("train", "test"))
    assert black.shape == (3, 2, 4) and black.dtype == torch.float32
    assert black[:, 0].eq(-1).all() and black[:, 1].eq(1).all()
    assert grey[0, 0, 0] == pytest.approx(-0.6)
