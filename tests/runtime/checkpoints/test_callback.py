"""A run resumes from suitable checkpoints, and rejects the others."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import callbacks

import hostile
from small_training import (
    BATCHES,
    SIZE,
    Fit,
    Line,
    Numbers,
    Resumable,
    directory,
    rows,
    same,
    saved_weights,
)
from smlightning.checkpoints import files
from smlightning.errors import UserError, as_user_error
from smlightning.files import digest

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


def test_a_full_disk_ends_training(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write_file

    def full(folder: Path, stem: str, *args: Any) -> Path:
        if stem[-4:] > "0005":
            raise UserError("no space", "free some")
        return write(folder, stem, *args)

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(UserError, match="no space"):
        fit(data=Resumable, checkpoint_steps=1, epochs=99)
    assert files.newest(directory())


def test_a_checkpoint_that_is_a_program_is_not_run(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the right checksum in its name: an attacker who may write to the folder can set it."""
    options = {"data": Resumable, "checkpoint_steps": 3}
    program, marker = tmp_path / "program.ckpt", tmp_path / "marker"
    hostile.write_program(program, marker)
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
    assert not marker.exists()
    hostile.run_program(newest)
    assert marker.exists(), "or the test proves nothing"
