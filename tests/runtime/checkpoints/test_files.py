"""Checkpoint files are whole or not there; damage is noticed; the newest few are kept."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning import torch_files
from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.errors import UserError


def state(step: int = 0) -> dict[str, Any]:
    return {"weights": torch.full((1000,), float(step))}


def write(directory: Path, step: int, **names: list[str]) -> Path:
    return files.write(directory, Position(step=step), state(step), names)


def write_best(directory: Path, number: int) -> str:
    """The name of a file of best weights."""
    content = {"weights": state(number), "shard": {}}
    return files.write_file(directory, f"{number:06d}-best-00000-of-00001", content).name


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Stands for a full disk: the same writes fail, and no privilege is needed."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def chosen(directory: Path) -> Path:
    """The checkpoint from which a run resumes."""
    return files.newest_verified([path for _, path in files.numbered(directory)])[0]


def test_a_name_holds_number_step_and_checksum(tmp_path: Path) -> None:
    first, second = write(tmp_path, 3), write(tmp_path, 6)
    assert re.fullmatch(r"000001-step000003-[0-9a-f]{16}\.ckpt", first.name)
    assert second.name.startswith("000002-step000006-")
    assert files.numbered(tmp_path) == [(2, second), (1, first)]
    assert chosen(tmp_path) == second
    content = files.read(second)
    assert torch.equal(content["weights"], state(6)["weights"])
    assert content["position"]["step"] == 6 and content["best_weights"] is None


def test_a_damaged_file_falls_back_to_the_checkpoint_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, newest = write(tmp_path, 3), write(tmp_path, 6)
    damage(newest)
    assert chosen(tmp_path) == before
    assert str(newest) in capsys.readouterr().err


def test_an_interrupted_write_is_no_checkpoint(tmp_path: Path) -> None:
    before = write(tmp_path, 3)
    left = tmp_path / ".000002-step000006.ckpt"
    left.write_bytes(before.read_bytes()[:100])
    assert chosen(tmp_path) == before
    files.remove_temporary(tmp_path)
    assert not left.exists() and before.exists()


def test_a_folder_of_damaged_checkpoints_is_an_error(tmp_path: Path) -> None:
    assert files.newest_path(tmp_path) is None
    for step in (3, 6):
        damage(write(tmp_path, step))
    with pytest.raises(UserError, match=r"none of the 2 .*damaged.*--resume never"):
        chosen(tmp_path)


def test_a_checkpoint_is_whole_only_with_the_files_that_it_names(tmp_path: Path) -> None:
    best = write_best(tmp_path, 1)
    path = write(tmp_path, 3, best=[best])
    assert files.companions(path) == [best]
    files.verified(path)
    assert torch.equal(files.read(path)["best_weights"]["weights"], state(1)["weights"])
    for change in (lambda: damage(tmp_path / best), (tmp_path / best).unlink):
        change()
        with pytest.raises(UserError, match=best):
            files.verified(path)


def test_damaged_best_weights_cost_no_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint with other best weights is older, and exact; else the newest state is used."""
    old, new = write_best(tmp_path, 1), write_best(tmp_path, 2)
    paths = [write(tmp_path, step, best=[name]) for step, name in ((3, old), (6, new), (9, new))]
    paths.reverse()
    damage(tmp_path / new)
    assert files.newest_verified(paths)[::2] == (paths[2], True)
    (tmp_path / old).unlink()
    assert "without the best weights" not in capsys.readouterr().err
    assert files.newest_verified(paths)[::2] == (paths[0], False)
    assert "resumes without the best weights" in capsys.readouterr().err
    assert files.read(paths[0], with_best=False)["best_weights"] is None
    damage(paths[0])
    assert files.newest_verified(paths)[::2] == (paths[1], False)


def test_another_host_keeps_the_shards_of_the_checkpoints_that_rank_0_keeps(tmp_path: Path) -> None:
    names = {
        f"{number:06d}-{best}00003-of-00004-{16 * 'a'}.shard"
        for number in range(1, 6)
        for best in ("", "best-")
    }
    for name in names:
        (tmp_path / name).touch()
    files.prune_shards(tmp_path, 4, {"000004-", "000003-", "000002-best-"})
    kept = ("000004-0", "000003-0", "000002-best-", "000005-")  # the last is being written
    assert {path.name for path in tmp_path.iterdir()} == {
        name for name in names if name.startswith(kept)
    }


def test_prune_removes_no_best_weights_if_a_checkpoint_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails for a moment: the names in the checkpoint are not known."""
    best = write_best(tmp_path, 1)
    paths = [write(tmp_path, number, best=[best]) for number in (1, 2)]

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(torch_files, "load", fail)
        files.prune(tmp_path)
    for path in paths:
        files.verified(path)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    kept = write(tmp_path, 3)
    with file_size_limit(1_000_000), pytest.raises(UserError) as error:
        files.write(tmp_path, Position(step=7), {"weights": torch.zeros(1_000_000)})
    assert str(kept) in error.value.problem and "--resume auto" in error.value.hint
    assert "\n" not in str(error.value)
    assert chosen(tmp_path) == kept
    assert not list(tmp_path.glob(".*.ckpt"))


def test_the_newest_checkpoint_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path, 3), write(tmp_path, 6)
    files.mark(tmp_path, files.FINISHED, "free some space")
    assert files.mark_of(second) == files.FINISHED and not files.mark_of(first)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "atomic_write", full)
    with pytest.raises(UserError, match=r"No space left on device.*free some space"):
        files.mark(tmp_path, files.DISCARDED, "free some space")
