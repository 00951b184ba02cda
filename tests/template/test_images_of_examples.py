"""The image examples read a channel, and give it the splits that it lacks."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

from projects import TEMPLATE
from smlightning.errors import UserError

PLACE = TEMPLATE / "examples/shared/src/images.py"
spec = importlib.util.spec_from_file_location("images", PLACE)
assert spec and spec.loader
images = importlib.util.module_from_spec(spec)
spec.loader.exec_module(images)
CLASSES = ["dark", "light"]


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's channel: 20 dark and 10 light images of different grey, for training."""
    place = tmp_path / "channel"
    for number in range(30):
        folder = place / "train" / CLASSES[number >= 20]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), 5 * number).save(folder / f"{number}.png")
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(place))
    monkeypatch.chdir(tmp_path)  # the prepared data lie next to it
    return place


@pytest.mark.parametrize("seed", range(4))
def test_missing_splits_get_a_tenth_of_each_class(seed: int, channel: Path) -> None:
    splits = images.complete(images.read("training", "prepared"), seed, "label")
    assert [*splits] == ["train", "validation", "test"]
    assert [len(rows) for rows in splits.values()] == [24, 3, 3]
    greys = [row["image"].getpixel((0, 0)) for rows in splits.values() for row in rows]
    assert sorted(greys) == [5 * number for number in range(30)]
    assert [sum(rows["label"]) for rows in splits.values()] == [8, 1, 1]


def test_too_few_images_of_a_class_are_an_error(channel: Path) -> None:
    for number in range(1, 20):
        (channel / "train" / "dark" / f"{number}.png").unlink()
    with pytest.raises(UserError, match="make the split validation"):
        images.complete(images.read("training", "prepared"), 0, "label")


def test_another_image_under_the_same_label_is_other_data(
    channel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def digest() -> str:
        prepared = tmp_path_factory.mktemp("prepared")
        return images.fingerprint(images.read("training", str(prepared)))

    before = digest()
    assert digest() == before
    (channel / "train" / "dark" / "3.png").rename(channel / "train" / "dark" / "33.png")
    renamed = digest()
    Image.new("L", (300, 200), 15).save(channel / "train" / "dark" / "33.png")
    assert len({before, renamed, digest()}) == 3
