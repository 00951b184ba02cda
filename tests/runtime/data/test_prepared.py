"""Prepared data is written once, and is complete or missing."""

import multiprocessing
import time
from pathlib import Path

import datasets
import pytest

from smlightning.data import prepared
from smlightning.errors import UserError

PATH = Path("data", "numbers")


def build(path: Path = PATH, name: str = "x", seconds: float = 0) -> bool:
    """Write ten numbers; whether anything had to be written."""
    with prepared.building(path) as folder:
        if folder is None:
            return False
        time.sleep(seconds)
        (folder / prepared.CACHE).mkdir()
        rows = datasets.Dataset.from_dict({"value": list(range(10))})
        rows.map(lambda row: row, cache_file_name=str(folder / "train.arrow"))
        prepared.seal(folder, {"name": name})
    return True


def test_data_is_written_once_and_read_memory_mapped() -> None:
    assert build() and not build()
    splits, facts = prepared.load(PATH)
    assert facts["name"] == "x"
    assert splits["train"]["value"] == list(range(10))
    assert splits["train"].cache_files
    assert sorted(path.name for path in PATH.iterdir()) == ["facts.json", "train.arrow"]


def test_a_failed_build_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), prepared.building(PATH) as folder:
        assert folder
        (folder / "half").write_text("")
        raise ZeroDivisionError
    assert {path.suffix for path in PATH.parent.iterdir()} <= {".lock"}
    killed = PATH.with_name(f".{PATH.name}")
    killed.mkdir()
    (killed / "half").write_text("")
    assert build()
    assert not (PATH / "half").exists() and not killed.exists()


def test_a_second_process_waits_for_the_first() -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        built = pool.starmap(build, [(PATH, "x", 0.2)] * 3)
    assert sorted(built) == [False, False, True]


def test_data_that_is_there_needs_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file is another user's, or the folder is read-only."""

    def refuse(*_: object) -> None:
        raise PermissionError

    assert build()
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    assert not build()


def test_a_folder_without_locks_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise NotImplementedError  # as filelock does on a file system without locks

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    with pytest.raises(UserError, match=r"lock.*--data_dir"):
        build()


@pytest.mark.parametrize("name", ["train.arrow", prepared.FACTS])
def test_a_damaged_file_ends_in_an_error(name: str) -> None:
    build()
    (PATH / name).write_bytes(b"\0\0")
    with pytest.raises(UserError, match="numbers cannot be read"):
        prepared.load(PATH)


def test_the_fingerprint_depends_on_content_and_facts_only() -> None:
    build(Path("one/a"))
    build(Path("two/b"))
    build(Path("three/c"), "another name")
    one, two, three = (
        prepared.load(Path(path))[1]["fingerprint"] for path in ("one/a", "two/b", "three/c")
    )
    assert one == two != three
