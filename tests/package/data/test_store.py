"""A store is built once, complete or not there, and a touched copy is built again."""

import errno
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from smlightning.data import store
from smlightning.errors import UserError

PATH = Path("data", "numbers")


def build(path: Path = PATH, name: str = "x") -> bool:
    """Write ten numbers, eight of them for training; whether anything had to be written."""
    with store.prepare(path, "numbers") as folder:
        if folder is None:
            return False
        pieces = [{"values": np.arange(at, at + 5, dtype=np.int32)} for at in (0, 5)]
        assert store.write(folder / "train", pieces) == {"values": 10}
        numbers = {"train": np.arange(8), "val": np.arange(8, 10)}
        store.write(folder / store.INDEX, [numbers])
        store.write_facts(folder, {"name": name})
    return True


def test_written_once_and_read_memory_mapped(capsys: pytest.CaptureFixture[str]) -> None:
    assert build()
    said = capsys.readouterr().out
    assert all(part in said for part in ("prepare_data", "10 numbers", "train 8", "val 2"))
    assert store.read_facts(PATH) == {"name": "x"}
    train, val = store.Rows(PATH, "train"), store.Rows(PATH, "val")
    assert train.column("values").tolist() == list(range(8))
    assert val.column("values").tolist() == [8, 9]
    assert (len(train), len(val)) == (8, 2)
    assert isinstance(train.arrays["values"].base, np.memmap)
    assert not build()
    assert not capsys.readouterr().out


def test_a_split_may_have_arrays_of_its_own() -> None:
    with store.prepare(PATH, "numbers") as folder:
        assert folder
        for split in ("train", "test"):
            store.write(folder / split, [{"values": np.array([len(split)])}])
            store.write(folder / store.INDEX, [{split: np.array([0])}])
    assert store.Rows(PATH, "test").column("values").tolist() == [4]


def test_no_file_is_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(store, "digest", None)
    assert not build()


def flip_a_bit() -> None:
    file = PATH / "train" / "values.int32"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_a_fact() -> None:
    file = PATH / store.FACTS
    file.write_text(file.read_text().replace("x", "y"))


def remove_the_stamps() -> None:
    """What a copy that was not finished lacks."""
    (PATH / store.STAMPS).unlink()


def add_a_file() -> None:
    (PATH / "other").write_text("")


@pytest.mark.parametrize("touch", [flip_a_bit, change_a_fact, remove_the_stamps, add_a_file])
def test_a_touched_copy_is_built_again(touch) -> None:  # type: ignore[no-untyped-def]
    build()
    touch()
    assert not store.verified(PATH)
    assert build()
    assert store.verified(PATH)
    assert store.read_facts(PATH) == {"name": "x"}


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


def test_a_full_disk_is_one_sentence() -> None:
    with pytest.raises(UserError) as refusal, store.prepare(PATH, "numbers"):
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as error:
            raise ValueError("a library's own") from error
    assert str(PATH) in refusal.value.problem and "--data_dir" in refusal.value.cure


def test_a_place_that_is_a_file_is_one_sentence() -> None:
    Path("data").write_text("")
    with pytest.raises(UserError) as refusal:
        build()
    assert "data" in refusal.value.problem


def test_a_place_without_locks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    with pytest.raises(UserError) as refusal:
        build()
    assert "lock" in refusal.value.problem and "--data_dir" in refusal.value.cure


def test_waiting_for_another_process_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "UNSAID_SECONDS", 0.05)
    PATH.parent.mkdir(parents=True)
    other = FileLock(f"{PATH}.lock").acquire()
    with ThreadPoolExecutor() as threads:
        built = threads.submit(build)
        lines = ""
        while str(PATH) not in lines:  # or pytest's own limit ends this
            lines += capsys.readouterr().out
            time.sleep(0.01)
        assert not built.done()
        other.lock.release()
        assert built.result()


def test_the_fingerprint_is_of_content_and_facts_alone() -> None:
    build(Path("one/a"))
    build(Path("two/b"))
    build(Path("three/c"), "another name")
    assert store.fingerprint(Path("one/a")) == store.fingerprint(Path("two/b"))
    assert store.fingerprint(Path("one/a")) != store.fingerprint(Path("three/c"))


def test_other_facts_are_another_place() -> None:
    place = store.path_for("data", "folder/my file.csv", [1])
    assert place.parent == Path("data") and place.name.startswith("my-file-csv-")
    assert place == store.path_for("data", "folder/my file.csv", [1])
    assert place != store.path_for("data", "folder/my file.csv", [2])


def test_rows_are_mapped_anew_by_another_process() -> None:
    with store.prepare(PATH, "numbers") as folder:
        assert folder
        store.write(folder / "train", [{"values": np.arange(100_000)}])
        store.write(folder / store.INDEX, [{"train": np.arange(100_000)}])
    content = pickle.dumps(store.Rows(PATH, "train"))
    assert len(content) < 1000
    again = pickle.loads(content)  # noqa: S301
    assert again.column("values").tolist() == list(range(100_000))


def test_a_type_is_that_of_the_first_piece() -> None:
    def pieces() -> Iterator[dict[str, np.ndarray]]:
        yield {"values": np.array([1, 2], np.uint8)}
        yield {"values": np.array([3, 4], np.int64)[::-1]}

    store.write(Path("train"), pieces())
    values = store.arrays(Path("train"))["values"]
    assert values.dtype == np.uint8 and values.tolist() == [1, 2, 4, 3]


def test_chunks_are_all_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", 4)
    parts = list(store.chunks(np.arange(10)))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert np.concatenate(parts).tolist() == list(range(10))
