"""Mistakes that show in training end in one sentence and a status, not in a stack trace."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning import callbacks

import train
from small_training import Fit, Manual
from smlightning.cluster import signals
from smlightning.errors import UserError


@pytest.fixture
def main(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `python src/train.py` does without options, but it trains as `fit` is told."""
    monkeypatch.setattr(signals, "install", lambda: None)
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def run(*args: Any, **options: Any) -> int:
        command_line = signals.begin(train.parse)
        return signals.run(lambda **_: fit(*args, **options), command_line)

    return run


def test_of_lightnings(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Manual) == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert "gradient clipping" in line


def test_early_stopping_on_what_is_never_logged(
    main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(callbacks=(callbacks.EarlyStopping("val/los"),)) == 1
    output = capsys.readouterr()
    assert "val/los," in output.err and "val/loss" in output.err
    assert "step=1 " not in output.out, "before training"
    assert main(callbacks=(callbacks.EarlyStopping("train/los"),), resume="never") == 1
    error = capsys.readouterr().err
    assert "train/los" in error and "strict=False" in error


def test_a_reader_of_standard_output_that_is_gone(
    main: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "--resume auto" in line


def test_a_full_disk_that_a_logger_wraps(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:  # as TensorBoard's, in Lightning 2.6.6
        cause = OSError(errno.ENOSPC, "No space left on device")
        raise ValueError("you tried to log 0.5") from cause

    monkeypatch.setattr(pl.loggers.TensorBoardLogger, "log_metrics", full)
    with pytest.raises(UserError) as refusal:
        fit(max_steps=3)
    assert "No space left on device" in refusal.value.problem
    assert "--resume auto" in refusal.value.cure


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (
            "from smlightning.errors import UserError\n"
            "raise UserError('no dictionary', 'install one')",
            ["no dictionary", "install one"],
        ),
        ("raise OSError(28, 'No space left on device')", ["No space left on device"]),
    ],
    ids=["user-error", "full-disk"],
)
def test_of_the_owners_module_while_it_is_imported(
    tmp_path: Path, code: str, parts: list[str]
) -> None:
    """Before anything runs, and so before `signals.run`."""
    sources = shutil.copytree(Path(train.__file__).parent, tmp_path / "sources")
    (sources / "data.py").write_text(code)
    run = subprocess.run(
        [sys.executable, str(sources / "train.py")],
        env={**os.environ, "SM_OUTPUT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: ") and all(part in line for part in parts)
    assert line == f"error: {(tmp_path / 'failure').read_text()}"
