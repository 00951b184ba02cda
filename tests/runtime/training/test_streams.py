"""Loaders with a state of their own resume exactly; another kind or number of them is an error."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import loader_runs
import rank_training
from small_training import Fit, Line, Numbers, directory, newest_state, rows, same
from smlightning.data.exact import Stream
from smlightning.errors import UserError
from smlightning.training import loaders
from smlightning_sagemaker.testing.processes import run_ranks

SIZE = 5


class Counted(DataLoader):
    """A user's loader, whose state is the number of batches that it has given."""

    def __init__(self) -> None:
        super().__init__(list(range(4 * SIZE)), SIZE)  # type: ignore[arg-type]
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        while self.given < 4:
            self.given += 1
            yield torch.full((SIZE,), self.given)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.given = state_dict["given"]


def begun() -> Stream:
    """A loader of one rank that has given one batch."""
    loader = Stream(Counted(), 1, 0)
    next(iter(loader))
    return loader


def test_a_state_of_unsafe_objects_is_an_error() -> None:
    loader = begun()
    assert loaders.states_of_ranks([loader], 1)[0]["states"][0]["state"]["given"] == 1
    loader.states[1]["state"]["extra"] = {"rng": np.arange(3), "path": SimpleNamespace()}
    with pytest.raises(UserError) as refused:
        loaders.states_of_ranks([loader], 1)
    assert "tolist" in refused.value.hint


def test_rank_0_gets_long_states_of_all_ranks_in_pieces(tmp_path: Path) -> None:
    records = run_ranks(rank_training.send_states, tmp_path / "ranks", 3)
    assert [each["lengths"] for each in records] == [[0, 300, 600], [], []]


class Points(IterableDataset):
    """A stream with a state that uses random numbers."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[Any]:
        points = rows(48)
        self.done %= len(points)
        while self.done < len(points):
            number, x, y = points[self.done]
            self.done += 1
            yield number, x + 0.1 * torch.rand(1), y

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.done = state_dict["done"]


class Streamed(Numbers):
    def train_dataloader(self) -> Any:
        return StatefulDataLoader(Points(), 6)


class Labelled(Streamed):
    """Its loader has an attribute with the name of a method of `exact.Stream`."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        loader.state = "open"
        return loader


class Planned(Line):
    """Asks for the number of steps: Lightning fetches a batch before it restores its loops."""

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches == 16
        return torch.optim.SGD(self.parameters(), 0.05)


@pytest.mark.parametrize(
    ("model", "data"), [(Line, Streamed), (Planned, Streamed), (Line, Labelled)]
)
def test_a_killed_run_ends_as_an_uninterrupted_one(
    model: type, data: type, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kill is in the second epoch; Lightning's part of the checkpoint has no loader state."""
    options: Any = {"data": data, "max_steps": 16, "epochs": 9, "checkpoint_steps": 1}
    options["model"] = model
    fit(**options, output_dir="alone")
    fit(**options, crash=("before_batch", 12))
    content = newest_state()
    assert content["loaders"]["streams"][0]["states"][0]["given"] == 3
    assert "combined_loader" not in content["loops"]["fit_loop"]["state_dict"]
    capsys.readouterr()
    fit(**options)
    assert "inexact" not in capsys.readouterr().out
    assert same(newest_state("alone")["state_dict"], newest_state()["state_dict"])


class PlannedPairs(loader_runs.Model):
    configure_optimizers = Planned.configure_optimizers


class Counting(Numbers):
    """A stream with a length, which Lightning makes anew for each epoch."""

    def train_dataloader(self) -> Any:
        return StatefulDataLoader(loader_runs.Stream(), loader_runs.SIZE)


def test_a_stream_that_is_made_anew_for_each_epoch_keeps_its_state(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning asks for a loader in ``configure_optimizers``, and for another one to train on."""
    options: Any = {"model": PlannedPairs, "data": Counting, "max_steps": 16, "checkpoint_steps": 1}
    options["trainer"] = {"reload_dataloaders_every_n_epochs": 1}
    fit(**options, output_dir="alone")
    fit(**options, crash=("before_batch", 12))
    capsys.readouterr()
    fit(**options)
    assert "inexact" not in capsys.readouterr().out
    assert same(newest_state("alone")["state_dict"], newest_state()["state_dict"])


def test_a_resume_with_another_kind_of_loader_is_an_error(fit: Fit) -> None:
    fit(data=Streamed, max_steps=16, checkpoint_steps=1, crash=("on_train_batch_end", 3))
    with pytest.raises(UserError) as refused:
        fit(Line, Numbers, max_steps=16)
    assert "1 training loaders" in refused.value.problem and directory().is_dir()


def test_another_number_of_ranks_workers_or_loaders_is_an_error() -> None:
    then = loaders.states_of_ranks([begun()], 1)
    counted = Stream(Counted(), 1, 0)
    loaders.check_states(then, [counted], 1)
    other = SimpleNamespace(loader=Counted(), num_workers=2, batch_size=SIZE)
    for states, found, world_size in (
        (then, [counted], 2), (then, [other], 1), (then, [counted, counted], 1), ([], [counted], 1),
    ):  # fmt: skip
        with pytest.raises(UserError) as refused:
            loaders.check_states(states, found, world_size)  # type: ignore[arg-type]
        assert "--resume never" in refused.value.hint


def test_a_state_that_the_first_batch_rejects_is_an_error() -> None:
    """datasets 5.2 and torchdata 0.11 load it in a worker, whose error comes with the batch."""

    class Late(Counted):
        def __iter__(self) -> Iterator[Any]:
            if self.given:
                raise IndexError(
                    "Caught IndexError in a worker\nIndexError: list index out of range"
                )
            yield from super().__iter__()

    again = Stream(Late(), 1, 0, lambda: (0, 1), begun().state(1))
    with pytest.raises(UserError) as refused:
        next(iter(again))
    assert "(IndexError: list index out of range)" in refused.value.problem


def test_a_loaded_state_is_asked_for_after_a_batch_only() -> None:
    """litdata 0.2.76 answers earlier with another epoch, and resumes from its answer."""

    class Answering(Counted):
        def state_dict(self) -> dict[str, Any]:
            self.given = self.given if self.begun else 0
            return super().state_dict()

        def __iter__(self) -> Iterator[Any]:
            self.begun = True
            yield from super().__iter__()

        begun = False

    again = Stream(Answering(), 1, 0, lambda: (0, 1), begun().state(1))
    assert next(iter(again))[0] == 2
