"""The images of predict.py's command line; texts: example/test_train.py."""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import predict
from smlightning import predictions
from smlightning.errors import UserError


def read(*words: str) -> dict[str, Any]:
    folder = str(Path(__file__).parent)  # not empty
    arguments = predictions.parser("", "image", "L").parse_args([*words, "--model_dir", folder])
    return predictions.images(arguments, lambda mode: Image.new(mode, (1, 1)))


def test_images_are_those_of_files_and_the_drawn_sample(tmp_path: Path) -> None:
    path = str(tmp_path / "wide.png")
    Image.new("RGB", (7, 3)).save(path)
    images = {path: (7, 3), "sample": (1, 1)}
    assert {name: image.size for name, image in read(path, "--sample").items()} == images
    assert read(path).keys() == {path}


@pytest.mark.parametrize("name", [__file__, "missing.png"])
def test_a_file_that_is_not_an_image_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} could not be read as an image"):
        read(name)


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
        predictions.read_image(io.BytesIO(body))


def test_the_arguments_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows it for rows of a table."""
    for name in ("stdin", "stdout"):  # pytest's own cannot be reconfigured
        monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(io.BytesIO()))
    made = predictions.parser("", "row", "{}")
    words = ["a", "--sample", "--model_dir", str(Path(__file__).parent)]
    assert [*predictions.texts(made.parse_args(words))] == ["a", "{}"]
    assert "[row ...]" in made.format_usage()


def test_without_a_model_a_sentence_says_so_at_once() -> None:
    """Before predict.py imports torch."""
    command = [sys.executable, "-X", "importtime", predict.__file__, "a"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and not re.search(r"\| +torch$", ended.stderr, re.M)
    assert "error: outputs/model has no trained model; train first" in ended.stderr
