"""A run without a fingerprint of its own resumes only with the same files."""

import os
from pathlib import Path

import pytest

from small_training import Fit, Line, Numbers
from smlightning.data.fingerprint import of_files
from smlightning.errors import UserError


def written(folder: Path, **files: bytes) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def test_it_changes_with_names_sizes_and_both_ends(tmp_path: Path) -> None:
    rows = b"price,rooms\n" + 50_000 * b"10,2\n"
    known = {of_files(written(tmp_path / "a", rows=rows), {})}
    for number, files in enumerate(
        [{"other": rows}, {"rows": rows + b"\n"}, {"rows": b"x" + rows[1:]},
         {"rows": rows[:-1] + b"x"}, {"rows": rows, "more": b""}]
    ):  # fmt: skip
        known.add(of_files(written(tmp_path / f"b{number}", **files), {}))
    assert len(known) == 6


def test_it_does_not_change_with_times_and_caches(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", rows=b"1")
    before = of_files(folder, {})
    os.utime(tmp_path / "a/rows", (1, 1))
    more = (".hidden", "rows.lock", "rows.tmp", "cache-1.arrow", "tmpab1_9xyz")
    written(tmp_path / "a", **dict.fromkeys(more, b""))
    assert of_files(folder, {}) == before
    written(tmp_path / "a", tmpdata=b"")
    assert of_files(folder, {}) != before
    channel = of_files("training", {"SM_CHANNEL_TRAINING": folder})
    assert channel and channel == of_files("", {"SM_CHANNEL_TRAINING": folder})


@pytest.mark.parametrize("dataset", ["", "cldr", "org/name", "."])
def test_other_names_have_none(dataset: str) -> None:
    assert of_files(dataset, {}) == ""


def test_a_run_does_not_resume_with_changed_files(fit: Fit, tmp_path: Path) -> None:
    """`Numbers` has no fingerprint."""
    dataset = str(tmp_path / "rows.csv")
    Path(dataset).write_text("1,2")
    options = {"dataset": dataset, "checkpoint_steps": 1}
    fit(Line, Numbers, crash=("before_batch", 4), **options)
    Path(dataset).write_text("1,3")
    with pytest.raises(UserError, match="data has changed"):
        fit(Line, Numbers, **options)
    Path(dataset).write_text("1,2")
    fit(Line, Numbers, **options)
