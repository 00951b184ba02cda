"""Loaders that keep a state of their own: what a checkpoint holds of them, and what is refused."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from small_training import Fit, Line, Numbers, directory, newest_state, rows, same
from smlightning.data import stateful
from smlightning.data.rng import Start
from smlightning.errors import UserError

SIZE = 5


class Counted(DataLoader):
    """A loader of the owner's: batches of numbers in order, which says how many were given."""

    def __init__(self, sized: bool, extra: Any = None, kept_workers: int = 0) -> None:
        rows: Any = list(range(4 * SIZE))
        kept = {"num_workers": kept_workers, "persistent_workers": kept_workers > 0}
        super().__init__(rows, SIZE, **kept)  # type: ignore[arg-type]
        self.sized, self.extra = sized, extra
        self.given = 0

    def __len__(self) -> int:
        if not self.sized:
            raise TypeError
        return 4

    def __iter__(self) -> Iterator[Any]:
        self.given %= 4
        while self.given < 4:
            self.given += 1
            yield torch.full((SIZE,), self.given), torch.rand(1)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "extra": self.extra}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["given"] > 4:
            raise ValueError("another loader's")
        self.given = state_dict["given"]


def training(
    epoch: int = 0, resumed: dict[str, Any] | None = None, sized: bool = True, rank: int = 0
) -> stateful.StatefulLoader:
    start = Start(epoch)
    return stateful.StatefulLoader(Counted(sized), lambda: start, resumed, 1, rank)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("trained", [1, 3, 4])
def test_a_state_is_that_of_the_batches_trained_on(sized: bool, trained: int) -> None:
    """Lightning fetches one ahead where there is no length."""
    whole, loader = list(training(sized=sized)), training(sized=sized)
    iterator = iter(loader)
    for _ in range(trained + (not sized)):
        next(iterator, None)
    resumed = loader.state(trained)
    assert resumed and resumed["ended"] is (trained == 4)
    rest = list(training(0, resumed, sized))
    assert same(rest, whole[trained:])


def test_after_an_epoch_the_next_one_begins() -> None:
    loader = training()
    assert len(list(loader)) == 4
    end = loader.state(0)
    loader.start = lambda: Start(1)
    second = list(loader)
    assert len(second) == 4 and same(list(training(1, end)), second)
    resumed = training(0, end)
    assert list(resumed) == [], "nothing is left of the epoch that had ended"
    resumed.start = lambda: Start(1)
    assert same(list(resumed), second)


def test_an_epoch_that_was_cut_short_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    loader = training()
    next(iter(loader))
    list(training(1, loader.state(0)))
    assert "resume: inexact" in capsys.readouterr().out


@pytest.mark.parametrize(("epoch", "workers"), [(0, 2), (1, 0), (1, 2)])
def test_persistent_workers_of_a_stream_print_a_warning(
    epoch: int, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they have drawn before is in no state: new ones begin otherwise."""
    loader = training(epoch)
    next(iter(loader))
    again = training(epoch, loader.state(1))
    again.loader = Counted(True, kept_workers=workers)
    assert len(list(again)) == 3
    assert ("persistent_workers" in capsys.readouterr().out) == (epoch > 0 and workers > 0)


def test_a_state_of_unsafe_objects_is_an_error() -> None:
    loader = training()
    next(iter(loader))
    assert stateful.states_of_ranks([loader], 1)[0]["states"][0]["state"]["given"] == 1
    loader.states[1]["extra"] = {"rng": np.arange(3), "path": SimpleNamespace()}
    with pytest.raises(UserError) as refused:
        stateful.states_of_ranks([loader], 1)
    assert "tolist" in refused.value.cure


def test_a_loader_that_cannot_load_a_state_is_an_error() -> None:
    loader = training()
    next(iter(loader))
    resumed = loader.state(1)
    assert resumed
    resumed["state"]["given"] = 9
    with pytest.raises(UserError, match="Counted"):
        list(training(0, resumed))


def test_another_number_of_ranks_workers_or_loaders_is_an_error() -> None:
    loader = training()
    next(iter(loader))
    then = stateful.states_of_ranks([loader], 1)
    stateful.check_states(then, Counted(True), 0, 1)
    other = SimpleNamespace(num_workers=2, batch_size=SIZE)
    for states, another, number, world_size in (
        (then, Counted(True), 0, 2), (then, other, 0, 1), (then, Counted(True), 1, 1),
        ([], Counted(True), 0, 1),
    ):  # fmt: skip
        with pytest.raises(UserError) as refused:
            stateful.check_states(states, another, number, world_size)
        assert "--resume never" in refused.value.cure


class Points(IterableDataset):
    """A stream with a state, which draws."""

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
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Points(), 6)


def test_a_killed_run_ends_as_an_uninterrupted_one(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of the second epoch; Lightning's part of the checkpoint has no state."""
    options = {"data": Streamed, "max_steps": 16, "epochs": 9, "checkpoint_steps": 1}
    fit(**options, output_dir="alone")
    fit(**options, crash=("on_train_batch_end", 11))
    content = newest_state()
    assert content["loaders"][0]["states"][0]["given"] == 3
    assert "combined_loader" not in content["loops"]["fit_loop"]["state_dict"]
    capsys.readouterr()
    fit(**options)
    assert "inexact" not in capsys.readouterr().out
    assert same(newest_state("alone")["state_dict"], newest_state()["state_dict"])


def test_a_resume_with_another_kind_of_loader_is_an_error(fit: Fit) -> None:
    fit(data=Streamed, max_steps=16, checkpoint_steps=1, crash=("on_train_batch_end", 3))
    with pytest.raises(UserError) as refused:
        fit(Line, Numbers, max_steps=16)
    assert "1 training loaders" in refused.value.problem and directory().is_dir()
