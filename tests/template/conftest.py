"""Fixtures of several tests of the template, made of projects.py."""

import random
from pathlib import Path

import pytest

from projects import Project, bake, hide


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with default answers."""
    return bake(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A csv file of 300 words in three alphabets, which trains in a second."""
    draw = random.Random(0)
    alphabets = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}
    lines = ["text,label"]
    for label, alphabet in alphabets.items():
        for _ in range(100):
            text = "".join(draw.choices(alphabet, k=draw.randint(1, 12)))
            lines.append(f"{text},{label}")
    path = tmp_path_factory.mktemp("words") / "words.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def without_sdk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of an environment that holds only what `make rehearse` installs."""
    folder = tmp_path_factory.mktemp("without-sdk")
    return hide(folder, "sagemaker", "moto", "mypy", "pytest", "ipykernel")
