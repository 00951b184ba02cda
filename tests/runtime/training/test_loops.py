"""Epochs, steps and streams: what a run counts, where it ends, and which trainings are errors."""

import re
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from small_training import BATCHES, SIZE, Fit, Line, Manual, Numbers, Stream, directory, rows
from smlightning.checkpoints import files
from smlightning.errors import UserError


def newest_name() -> str:
    path = files.newest_path(directory())
    assert path
    return path.name


def refused(fit: Fit, *args: Any, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        fit(*args, **options)
    return caught.value


def test_an_epoch_that_accumulation_does_not_divide(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning steps at the epoch's last batch all the same."""
    fit(accumulate_grad_batches=3)
    assert f"global_batch={3 * SIZE} ({SIZE} per rank x world_size=1 x" in capsys.readouterr().out
    assert "-step000006-" in newest_name()


def test_several_optimizers_count_as_one_step(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Manual, gradient_clip_val=0.0)
    steps = re.findall(r"^step=(\d+) ", capsys.readouterr().out, re.M)
    assert steps[-1] == str(2 * BATCHES)
    assert f"-step{2 * BATCHES:06d}-" in newest_name()
    refusal = refused(fit, Manual, gradient_clip_val=0.0, max_steps=9, resume="never")
    assert "max_steps=9" in refusal.problem and "limit_train_batches" in refusal.hint


@pytest.mark.parametrize(
    ("split", "loader"),
    [("training", "train"), ("validation", "val"), ("test", "test")],
)
def test_data_without_a_batch_is_an_error(split: str, loader: str, fit: Fit) -> None:
    empty = {f"{loader}_dataloader": lambda self: DataLoader(rows(3), 6, drop_last=True)}
    refusal = refused(fit, data=type("Empty", (Numbers,), empty))
    assert split in refusal.problem
    assert refusal.hint == "lower batch_size: it is 6, drop_last is set, and there are 3 rows"


class EmptyStream(Stream):
    class Rows(IterableDataset):
        def __iter__(self) -> Any:
            yield from ()


@pytest.mark.parametrize(
    ("data", "arguments"), [(EmptyStream, {}), (Numbers, {"limit_train_batches": 0})]
)
def test_a_training_without_a_batch_is_not_complete(
    data: type, arguments: dict[str, Any], fit: Fit
) -> None:
    refusal = refused(fit, data=data, trainer=arguments, max_steps=3)
    assert "training" in refusal.problem
    assert fit(data=Stream, max_steps=3).global_step == 3


@pytest.mark.parametrize("scaled", [False, True])
def test_training_that_diverges_ends(scaled: bool, fit: Fit) -> None:
    """A single loss that is not finite, of a step that a gradient scaler leaves out, does not end
    it.
    """

    class Diverging(Line):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            factor = float("nan") if batch_idx == 5 else 1
            loss = super().training_step(batch, batch_idx) * factor
            return loss.detach().requires_grad_() if scaled else loss

    if scaled:
        assert fit(Diverging).global_step == 2 * BATCHES
    else:
        refusal = refused(fit, Diverging)
        assert "step 8" in refusal.problem and "net.0.weight" in refusal.problem


def test_a_training_without_end_is_an_error(fit: Fit) -> None:
    refusal = refused(fit, trainer={"max_epochs": -1})
    assert "max_epochs" in refusal.problem and "max_steps" in refusal.problem
    assert fit(trainer={"max_epochs": -1}, max_steps=3).global_step == 3


def test_a_stream_trains_for_max_steps(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max_steps" in refused(fit, data=Stream).hint
    steps = BATCHES + 3
    options = {"data": Stream, "epochs": 9, "max_steps": steps}
    assert fit(**options).global_step == steps
    options = {**options, "output_dir": "b", "checkpoint_steps": 1}
    fit(**options, crash=("on_train_batch_end", 3))
    capsys.readouterr()
    assert fit(**options).global_step == steps
    resumed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("resume: ")]
    assert len(resumed) == 2 and "inexact" in resumed[1], resumed
