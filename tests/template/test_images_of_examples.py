"""The image examples read a channel, give it the splits that it lacks, and read image files."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from projects import TEMPLATE
from smlightning import predictions
from smlightning.errors import UserError


def shared(name: str) -> Any:
    """A module of the files that both examples copy."""
    path = TEMPLATE / "examples/shared/src" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


images, image_files = shared("images"), shared("image_files")
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


def opened(*words: str) -> dict[str, Any]:
    folder = str(Path(__file__).parent)  # not empty
    arguments = predictions.parser("", "image", "L").parse_args([*words, "--model_dir", folder])
    return image_files.opened(arguments, lambda mode: Image.new(mode, (1, 1)))


def test_images_are_those_of_files_and_the_drawn_sample(tmp_path: Path) -> None:
    path = str(tmp_path / "wide.png")
    Image.new("RGB", (7, 3)).save(path)
    found = opened(path, "--sample")
    sizes = {name: image.size for name, image in found.items()}
    assert sizes == {path: (7, 3), "sample": (1, 1)}
    assert opened(path).keys() == {path}


@pytest.mark.parametrize("name", [__file__, "missing.png"])
def test_a_file_that_is_not_an_image_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} could not be read as an image"):
        opened(name)


def encoded(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    body = io.BytesIO()
    Image.new("RGB", size).save(body, kind)
    return body.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        encoded("PNG")[:-30],
        encoded("EPS"),  # for which PIL would start Ghostscript
        encoded("PNG", (15_000, 15_000)),  # 225 million pixels in a small file
    ],
    ids=["text", "cut", "program", "bomb"],
)
def test_only_whole_images_of_usual_size_are_read(body: bytes) -> None:
    with pytest.raises(OSError):
        image_files.read(io.BytesIO(body))
