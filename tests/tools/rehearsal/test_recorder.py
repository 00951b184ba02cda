"""The recorder's digests of batches and samples."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_rehearsal import small_plan

from smlightning_sagemaker.rehearsal.hosts import copy_stubs


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    copy_stubs(small_plan(1, 1), tmp_path / "stubs")
    monkeypatch.syspath_prepend(tmp_path / "stubs")
    return SimpleNamespace(**runpy.run_path(str(tmp_path / "stubs" / "rehearsal_process.py")))


def note(recorder: SimpleNamespace, *batches: Any) -> tuple[list[Any], list[str]]:
    """The digests that a rank notes of its batches, and of their samples."""
    seen: tuple[list[Any], list[str]] = ([], [])
    for batch in batches:
        recorder.note_batch(*seen, batch)
    return seen


X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([1, 0, 1])


def test_samples_have_the_same_digest_in_another_batch(recorder: SimpleNamespace) -> None:
    """A tensor of another length is not part of the samples."""
    other = [torch.zeros(1)]
    first, second = {"x": X, "y": (Y, other)}, {"x": X.flip(0), "y": (Y, other)}
    batches, samples = note(recorder, first, second)
    assert [size for _, size in batches] == [3, 3] and batches[0] != batches[1]
    assert len(samples) == 6 and set(samples[:3]) == set(samples[3:])


def test_a_number_in_the_batch_changes_its_digest(recorder: SimpleNamespace) -> None:
    batches, _ = note(recorder, {"x": X, "scale": 0.5}, {"x": X.clone(), "scale": 0.5})
    assert batches[0] == batches[1]
    assert note(recorder, {"x": X, "scale": 1.0})[0] != batches[:1]


def test_batches_without_columns_have_a_digest_and_no_samples(recorder: SimpleNamespace) -> None:
    sparse = [torch.eye(2).to_sparse()]
    batches, samples = note(recorder, ["one", "other"], ["one", "another"], sparse)
    assert len({digest for digest, _ in batches}) == 3
    assert [size for _, size in batches] == [0, 0, 2] and not samples
