"""Checkpoint files are whole or not there; damage is noticed; the newest few are kept."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning.checkpoints import files
from smlightning.errors import UserError


def state(step: int = 0) -> dict[str, Any]:
    return {"weights": torch.full((1000,), float(step))}


def write(directory: Path, *steps: int) -> list[Path]:
    return [files.write(directory, step, state(step)) for step in steps]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        content[len(content) * 2 // 3] ^= 4
        path.write_bytes(content)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """It stands for the disk's end: the same writes fail, and anybody may set it."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_name_holds_number_step_and_checksum(tmp_path: Path) -> None:
    first, second = write(tmp_path, 3, 6)
    assert re.fullmatch(r"000001-step000003-[0-9a-f]{16}\.ckpt", first.name)
    assert second.name.startswith("000002-step000006-")
    assert files.numbered(tmp_path) == [(2, second), (1, first)]
    assert files.newest(tmp_path) == second
    assert files.checksum(second) in second.name
    assert torch.equal(files.load(second)["weights"], state(6)["weights"])


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped"])
def test_the_one_before_a_damaged_one_is_taken(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, newest = write(tmp_path, 3, 6)
    damage(newest, how)
    assert not files.whole(newest)
    assert files.newest(tmp_path) == before
    assert str(newest) in capsys.readouterr().err


def test_a_write_that_was_cut_off_is_no_checkpoint(tmp_path: Path) -> None:
    (before,) = write(tmp_path, 3)
    left = tmp_path / ".000002-step000006.ckpt"
    left.write_bytes(before.read_bytes()[:100])
    assert files.newest(tmp_path) == before
    write(tmp_path, 6)
    assert not left.exists()


def test_to_start_anew_is_for_a_person_to_say(tmp_path: Path) -> None:
    assert files.newest(tmp_path) is None
    for path in write(tmp_path, 3, 6):
        damage(path, "flipped")
    with pytest.raises(UserError) as refusal:
        files.newest(tmp_path)
    assert "2" in refusal.value.problem and "--resume never" in refusal.value.cure


def test_a_checkpoint_is_whole_only_with_the_best_weights_that_it_names(tmp_path: Path) -> None:
    best = files.write_best(tmp_path, state(1))
    path = files.write(tmp_path, 3, state(3), best)
    assert files.best_file(path) == best and files.whole(path)
    damage(best, "flipped")
    assert not files.whole(path)
    best.unlink()
    assert not files.whole(path)


def test_the_newest_few_are_kept_and_the_best_weights_that_they_name(tmp_path: Path) -> None:
    bests = []
    for number in range(files.KEEP + 3):
        if number % 2 == 0:
            bests.append(files.write_best(tmp_path, state(number)))
        files.write(tmp_path, number, state(number), bests[-1])
        files.prune(tmp_path)
    names = [path for _, path in files.numbered(tmp_path)]
    assert len(names) == files.KEEP
    named = {files.best_file(path) for path in names}
    assert named == set(tmp_path.glob("*-best-*.ckpt")) == set(bests[-2:])


def test_nothing_else_is_removed_where_a_checkpoint_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails for a moment; what the checkpoint names is not known then."""
    best = files.write_best(tmp_path, state(1))
    paths = [files.write(tmp_path, number, state(number), best) for number in (1, 2)]

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "load", fail)
        files.prune(tmp_path)
    assert all(files.whole(path) for path in paths)
    assert files.best_file(paths[-1]) == best


def test_a_full_disk_names_the_last_good_one(tmp_path: Path) -> None:
    kept, *_ = write(tmp_path, 3)
    with file_size_limit(1_000_000), pytest.raises(UserError) as refusal:
        files.write(tmp_path, 7, {"weights": torch.zeros(1_000_000)})
    assert str(tmp_path) in refusal.value.problem and str(kept) in refusal.value.problem
    assert "--resume auto" in refusal.value.cure
    assert "\n" not in str(refusal.value)
    assert files.newest(tmp_path) == kept
    assert not list(tmp_path.glob(files.TEMPORARY))


def test_what_cannot_be_read_back_is_refused(tmp_path: Path) -> None:
    kept, *_ = write(tmp_path, 3)
    with pytest.raises(UserError) as refusal:
        files.write(tmp_path, 4, {"path": Path("somewhere")})
    assert "save_hyperparameters()" in refusal.value.cure
    assert files.newest(tmp_path) == kept


def test_loading_executes_nothing(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"callbacks": Payload()}, tmp_path / "payload.ckpt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        files.load(tmp_path / "payload.ckpt")
    assert files.best_file(tmp_path / "payload.ckpt") is None
    assert not (tmp_path / "executed").exists()


def test_a_finished_run_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path, 3, 6)
    files.mark_finished(tmp_path)
    assert files.finished(second) and not files.finished(first)
    (third,) = write(tmp_path, 9)
    assert not files.finished(third)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "atomic_write", full)
    with pytest.raises(UserError) as refusal:
        files.mark_finished(tmp_path)
    assert "No space left on device" in refusal.value.problem
    assert not files.finished(third)
