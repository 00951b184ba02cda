"""A run resumes from suitable checkpoints, and rejects the others."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks

from small_training import (
    BATCHES,
    SIZE,
    Alone,
    Fit,
    Line,
    Numbers,
    Resumable,
    assert_same,
    directory,
    newest_state,
    rows,
    same,
    saved_weights,
)
from smlightning.checkpoints import files
from smlightning.errors import UserError, as_user_error
from smlightning.files import digest
from torchscript import write_archive

HALFWAY = ("on_train_batch_end", BATCHES + 3)


class Fewer(Numbers):
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(rows(SIZE * BATCHES), 2 * SIZE)


class Wider(Line):
    width = 7


class OtherOptimizer(Line):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (Line, type("Other", (Numbers,), {"fingerprint": "other points"}), "data has changed"),
        (Line, Fewer, f"{BATCHES} .* {BATCHES // 2};"),
        (Wider, Numbers, "size mismatch for net.0.weight"),
        (OtherOptimizer, Numbers, "Adam.*SGD"),
    ],
)
def test_other_data_or_another_model_is_an_error(
    model: type, data: type, words: str, fit: Fit
) -> None:
    fit(checkpoint_steps=1, crash=HALFWAY)
    with pytest.raises((UserError, RuntimeError), match=words) as error:
        fit(model, data)
    assert as_user_error(error.value)


def test_weights_that_do_not_fit_are_the_users_only_in_a_resume() -> None:
    with pytest.raises(RuntimeError, match="size mismatch") as error:
        Wider().load_state_dict(Line().state_dict())
    assert not as_user_error(error.value)


def test_the_validated_averages_are_the_best_weights(fit: Fit) -> None:
    """EMAWeightAveraging validates its averages; they are tested and saved, also if resumed."""

    def go(output: str, **more: Any) -> Line:
        averaging = callbacks.EMAWeightAveraging(decay=0.7)
        options = {"data": Resumable, "output_dir": output, "checkpoint_steps": 1, **more}
        return fit(Averaged, callbacks=(averaging,), **options).lightning_module

    alone = go("alone")
    scores = {score: weight for stage, weight, score in alone.scores if stage == "fit"}
    (tested,) = [weight for stage, weight, _ in alone.scores if stage == "test"]
    assert tested == scores[min(scores)] and tested == saved_weights("alone")["0.weight"][0].item()
    fit(data=Resumable, output_dir="plain")  # trains alike, and averages nothing
    assert tested != saved_weights("plain")["0.weight"][0].item()
    go("resumed", crash=HALFWAY)
    go("resumed")
    assert same(saved_weights("alone"), saved_weights("resumed"))


class Shadow(pl.Callback):
    """A moving average as many write it: put into the model for the length of a validation."""

    def __init__(self, *, for_test: bool) -> None:
        self.average: list[torch.Tensor] = []
        self.for_test = for_test

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        weights = [weight.detach().clone() for weight in module.parameters()]
        pairs = zip(self.average or weights, weights, strict=True)
        self.average = [0.7 * average + 0.3 * weight for average, weight in pairs]

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.trained = [weight.data for weight in module.parameters()]
        for weight, average in zip(module.parameters(), self.average, strict=False):
            weight.data = average

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        for weight, trained in zip(module.parameters(), self.trained, strict=True):
            weight.data = trained

    def on_test_start(self, trainer: Any, module: Any) -> None:
        self.average = [0.9 * average for average in self.average]  # not those of the best epoch
        if self.for_test:
            self.on_validation_start(trainer, module)

    def on_test_end(self, trainer: Any, module: Any) -> None:
        if self.for_test:
            self.on_validation_end(trainer, module)


@pytest.mark.parametrize("for_test", [False, True])
def test_weights_that_any_callback_exchanges_for_validation_are_those_saved(
    for_test: bool, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    module = fit(Averaged, callbacks=(Shadow(for_test=for_test),), epochs=3).lightning_module
    scores = {score: weight for stage, weight, score in module.scores if stage == "fit"}
    assert saved_weights()["0.weight"][0].item() == scores[min(scores)]
    (tested,) = [weight for stage, weight, _ in module.scores if stage == "test"]
    assert tested == scores[min(scores)]
    assert for_test == ("a hook exchanges the best weights for the test" in capsys.readouterr().err)


class Averaged(Line):
    """Records the score of each validated weight."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.scores: list[tuple[str, float, float]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.validated = self.net[0].weight[0].item()

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.scores.append(("fit", self.validated, self.error.compute().item()))

    def on_test_epoch_end(self) -> None:
        self.scores.append(("test", self.net[0].weight[0].item(), 0.0))


def test_a_run_resumes_without_best_weights_that_are_damaged(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three checkpoints share their file; weights, optimizer and position are whole."""
    options = {"data": Resumable, "checkpoint_steps": 1, "epochs": 3}
    fit(**options, output_dir="alone")
    fit(**options, crash=("before_batch", BATCHES + 6))
    (best,) = directory().glob("*-best-*.shard")
    content = bytearray(best.read_bytes())
    content[len(content) // 2] ^= 1
    best.write_bytes(content)
    capsys.readouterr()
    fit(**options)
    printed = capsys.readouterr()
    assert f"warning: {best} is damaged" in printed.err
    assert "resumes without the best weights so far" in printed.err
    assert f"step {BATCHES + 5} of" in printed.out
    assert same(newest_state("alone")["state_dict"], newest_state()["state_dict"])


class Slim(Line):
    """Leaves a frozen layer out of checkpoints, as of a large base model."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.strict_loading = False
        self.net[0].requires_grad_(False)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        every = super().state_dict(*args, **options)
        return {name: value for name, value in every.items() if not name.startswith("net.0")}


def test_a_model_may_leave_weights_out_of_checkpoints(fit: Fit, alone: Alone) -> None:
    fit(Slim, crash=("before_batch", BATCHES + 3), checkpoint_steps=1)
    fit(Slim, checkpoint_steps=1)
    assert_same(alone(Slim, checkpoint_steps=1)[0], "outputs", "slim")


def test_a_full_disk_ends_training(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write_file

    def full(folder: Path, stem: str, *args: Any) -> Path:
        if stem[-4:] > "0005":
            raise UserError("no space", "free some")
        return write(folder, stem, *args)

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(UserError, match="no space"):
        fit(data=Resumable, checkpoint_steps=1, epochs=99)
    assert files.newest_path(directory())


def test_a_checkpoint_that_is_a_program_is_not_run(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the right checksum in its name: an attacker who may write to the folder can set it."""
    options = {"data": Resumable, "checkpoint_steps": 3}
    program = tmp_path / "program.ckpt"
    write_archive(program)
    fit(**options, crash=HALFWAY)
    (number, before), *_ = files.numbered(directory())
    name = f"{number + 1:06d}-step000099-{digest(program)[:16]}.ckpt"
    newest = Path(shutil.copy(program, directory() / name))
    with pytest.raises(UserError, match="TorchScript"):
        fit(**options, output_dir="elsewhere", resume=str(newest))
    capsys.readouterr()
    fit(**options, crash=("on_train_batch_end", 2))
    output = capsys.readouterr()
    assert f"warning: {newest} is a program" in output.err
    assert f"resume: from {before}, " in output.out
