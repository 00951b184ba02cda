"""A resumed run has the random numbers of an uninterrupted one, with ordinary loaders."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from rank_training import Noisy, NoisyLine
from small_training import BATCHES, SIZE, Fit, Line, Numbers, newest_state, rows, same
from smlightning.data.exact import ExactBatches


class Unsteady(Sampler):
    """An order that nothing of this run decides, as one of the time would be."""

    runs = 0

    def __init__(self) -> None:
        type(self).runs += 1

    def __len__(self) -> int:
        return 36

    def __iter__(self) -> Any:
        shift = 7 * self.runs
        yield from ((row + shift) % 36 for row in range(36))


class Shifting(Numbers):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Noisy(), 4, sampler=Unsteady())


class Ordinary(Numbers):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Noisy(), 4, shuffle=True)


@pytest.mark.parametrize(("data", "exact"), [(Shifting, False), (Ordinary, True)])
def test_a_resume_with_another_order_prints_a_warning(
    data: type, exact: bool, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"checkpoint_steps": 1}
    fit(NoisyLine, data, output_dir="alone", **options)
    fit(NoisyLine, data, output_dir="resumed", crash=("on_train_batch_end", 12), **options)
    capsys.readouterr()
    fit(NoisyLine, data, output_dir="resumed", **options)
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("resume: inexact")]
    assert len(lines) == (not exact)
    weights = [newest_state(folder)["state_dict"] for folder in ("alone", "resumed")]
    assert same(*weights) is exact


@pytest.mark.parametrize("batch_size", [2, 8])
def test_another_batch_size_with_the_same_global_batch_goes_on(
    batch_size: int, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four rows twice, then others and another accumulation: the rest of the order, each once."""

    def data(size: int) -> type:
        def train_dataloader(self: Any) -> DataLoader:
            return DataLoader(Noisy(), size, shuffle=True)

        return type("Sized", (Numbers,), {"train_dataloader": train_dataloader})

    class Recording(NoisyLine):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trained.append(batch[0].tolist())
            return super().training_step(batch, batch_idx)

    def go(size: int, **more: Any) -> list[int]:
        options = {"batch_size": size, "accumulate_grad_batches": 8 // size, "epochs": 1}
        trainer = fit(Recording, data(size), checkpoint_steps=1, **options, **more)
        return list(itertools.chain(*trainer.lightning_module.trained))

    before = go(4, crash=("before_batch", 5))
    capsys.readouterr()
    after = go(batch_size)
    assert "inexact" not in capsys.readouterr().out
    assert sorted(before + after) == list(range(36))


def test_epochs_differ_and_evaluations_do_not(fit: Fit) -> None:
    seen: dict[str, list[Any]] = {"train": [], "val": []}

    class Data(Numbers):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(Noisy(), 36)

        def val_dataloader(self) -> DataLoader:
            return DataLoader(Noisy(), 36)

    class Watching(NoisyLine):
        def on_train_start(self) -> None:
            assert isinstance(self.trainer.train_dataloader.batches, ExactBatches)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen["train"].append(batch[1].tolist())
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen["val"].append(batch[1].tolist())
            self.log("val/loss", 1.0)

    fit(Watching, Data)
    assert seen["train"][0] != seen["train"][1]
    assert len(seen["val"]) == 3 and seen["val"][0] == seen["val"][1] == seen["val"][2]


class Composed:
    """Transforms within transforms, the innermost with a generator of its own."""

    def __init__(self, depth: int = 3) -> None:
        self.transforms = [Composed(depth - 1)] if depth else []
        self.numbers = None if depth else np.random.RandomState(0)

    def __call__(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x if self.numbers is None else x + self.numbers.normal(0, 0.1)


class Transformed(Dataset):
    def __init__(self) -> None:
        self.points, self.transform = rows(SIZE * BATCHES), Composed()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, row: int) -> Any:
        number, x, y = self.points[row]
        return number, self.transform(x).float(), y


class InWorkers(Numbers):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Transformed(), SIZE, shuffle=True, num_workers=2)


class OnDevice(Line):
    """Moves the points before and after their transfer to the device."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        number, x, y = batch
        return number, x + np.random.normal(0, 0.1) * self.trainer.training, y

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        number, x, y = batch
        return number, (x + 0.1 * torch.randn_like(x) * self.trainer.training).float(), y

    def on_train_epoch_start(self) -> None:
        self.scale = torch.rand(1).item()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.scale * super().training_step(batch, batch_idx)


@pytest.mark.parametrize("moment", [("on_train_batch_end", 3), ("before_epoch", 2)])
def test_augmentation_of_workers_and_of_the_device_is_exact(
    moment: tuple[str, int], fit: Fit
) -> None:
    options = {"epochs": 3, "checkpoint_steps": 1}
    fit(OnDevice, InWorkers, output_dir="alone", **options)
    fit(OnDevice, InWorkers, output_dir="resumed", crash=moment, **options)
    fit(OnDevice, InWorkers, output_dir="resumed", **options)
    assert same(*(newest_state(folder)["state_dict"] for folder in ("alone", "resumed")))


def test_two_workers_do_not_share_their_noise(fit: Fit) -> None:
    noise = []

    class Seeing(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            _, x, y = batch
            noise.append(tuple((x - (y - 1) / 3).flatten().tolist()))
            return super().training_step(batch, batch_idx)

    fit(Seeing, InWorkers, epochs=1)
    assert len(noise) == len(set(noise)) == BATCHES
