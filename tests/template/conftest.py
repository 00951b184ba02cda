"""Fixtures of several tests of the template, made of projects.py."""

from pathlib import Path

import pytest

from projects import Project, bake, hide, write_words


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with default answers."""
    return bake(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("words") / "words.csv")


@pytest.fixture(scope="session")
def without_sdk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of an environment that holds only what `make rehearse` installs."""
    folder = tmp_path_factory.mktemp("without-sdk")
    return hide(folder, "sagemaker", "moto", "mypy", "pytest", "ipykernel")
