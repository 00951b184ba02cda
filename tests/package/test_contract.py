"""The contract that a project's tests take, kept by the files that a project is generated with."""

from collections import Counter
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.loggers import CSVLogger

from smlightning.testing import recording
from smlightning.testing.contract import *  # noqa: F403
from smlightning.testing.contract import missing_of_what_is_not_drawn


def test_of_a_randomly_augmented_stream_what_is_not_drawn_is_compared() -> None:
    """Samples are a noisy image and its number; then their noise alone."""
    one, again = (Counter(f"{noise}{row} {row}" for row in range(6)) for noise in "ab")
    many = Counter(f"c{row} {row}" for row in (0, 1, 1, 3, 4, 5))
    assert missing_of_what_is_not_drawn(one, again, many) == 1
    noise = [Counter(sample.split()[0] for sample in given) for given in (one, again, many)]
    with pytest.raises(pytest.skip.Exception):
        missing_of_what_is_not_drawn(*noise)


def test_what_lightning_monitors_is_no_metric_of_the_project(tmp_path: Path) -> None:
    """LearningRateMonitor puts lr-SGD and others among the metrics; METRICS need not name them."""

    class Logging(BoringModel):
        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("loss", self(batch).sum())

    recorder = recording.TrainingRecorder(lambda seen: None, kill_at=0)
    monitor = pl.callbacks.LearningRateMonitor(log_momentum=True, log_weight_decay=True)
    trainer = pl.Trainer(
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=1,
        accelerator="cpu",
        callbacks=[recorder, monitor],
        logger=CSVLogger(tmp_path),
        enable_checkpointing=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    trainer.fit(Logging())
    assert "lr-SGD" in trainer.callback_metrics
    (validated,) = recorder.seen["validated"]
    assert set(validated) == {"loss"}


del test_the_rehearsal_passes  # noqa: F821  projects of tests/template are rehearsed
del test_every_option_changes_something  # noqa: F821  test_contract_options.py
del test_the_ranks_agree, test_every_sample_reaches_one_rank  # noqa: F821  test_contract_ranks.py
