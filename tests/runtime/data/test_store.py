"""A store is built once, is complete or missing, and is built again after a change."""

from pathlib import Path

import numpy as np
import pytest

from smlightning.data import store
from smlightning.errors import UserError

PATH = Path("data", "numbers")


def build(path: Path = PATH, name: str = "x") -> bool:
    """Write ten numbers, eight of them for training; whether anything had to be written."""
    with store.prepare(path, "numbers") as folder:
        if folder is None:
            return False
        pieces = [{"values": np.arange(at, at + 5, dtype=np.int32)} for at in (0, 5)]
        store.write(folder / "train", pieces)
        numbers = {"train": np.arange(8), "val": np.arange(8, 10)}
        store.write(folder / store.INDEX, [numbers])
        store.write_facts(folder, {"name": name})
    return True


def test_a_store_is_written_once_and_read_memory_mapped(capsys: pytest.CaptureFixture[str]) -> None:
    assert build()
    out = capsys.readouterr().out
    assert all(part in out for part in ("10 numbers", "train 8", "val 2"))
    assert store.read_facts(PATH) == {"name": "x"}
    train, val = store.Rows(PATH, "train"), store.Rows(PATH, "val")
    assert train.column("values").tolist() == list(range(8))
    assert val.column("values").tolist() == [8, 9]
    assert (len(train), len(val)) == (8, 2)
    assert isinstance(train.arrays["values"].base, np.memmap)
    assert not build()
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", [store.DIGESTS, store.FACTS, "train/values.int32"])
@pytest.mark.parametrize("content", [None, b"", b"0"])
def test_a_copy_with_a_changed_or_missing_file_is_built_again(
    name: str, content: bytes | None
) -> None:
    build()
    if content is None:
        (PATH / name).unlink()
    else:
        (PATH / name).write_bytes(content)
    assert build() and not build()
    assert store.Rows(PATH, "train").column("values").tolist() == list(range(8))


def test_a_failed_build_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), store.prepare(PATH, "numbers") as folder:
        assert folder
        (folder / "half").write_text("")
        raise ZeroDivisionError
    assert {path.suffix for path in PATH.parent.iterdir()} <= {".lock"}
    killed = PATH.with_name(f".{PATH.name}")
    killed.mkdir()
    (killed / "half").write_text("")
    assert build()
    assert not (PATH / "half").exists() and not killed.exists()


def test_a_folder_without_locks_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise NotImplementedError  # as filelock does on a file system without locks

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    with pytest.raises(UserError, match=r"lock.*--data_dir"):
        build()


def test_the_fingerprint_depends_on_content_and_facts_only() -> None:
    build(Path("one/a"))
    build(Path("two/b"))
    build(Path("three/c"), "another name")
    assert store.fingerprint(Path("one/a")) == store.fingerprint(Path("two/b"))
    assert store.fingerprint(Path("one/a")) != store.fingerprint(Path("three/c"))
