"""The work of a rank in a test: runs the project and records batches, weights and metrics."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.checkpoints import files
from smlightning.data.exact import resumes_exactly
from smlightning.reports import curves
from smlightning.tensors import digest, samples
from smlightning.training.loaders import Loaders, all_loaders
from smlightning.training.seeds import StepSeed
from smlightning_sagemaker.testing import owner

Write = Callable[[dict[str, Any]], Any]
WRITE_SECONDS = 5  # in which a checkpoint is written, on a busy machine
PREDICT = ("--sample", "--model_dir", "outputs/model")
PREPARED = re.compile(r"-[0-9a-f]{12}(?=[/.])")  # the end of a name of `prepared.path_for`


class TrainingRecorder(pl.Callback):
    """Records digests of batches and weights, losses, learning rates and metrics."""

    def __init__(self, write: Write, kill_at: int) -> None:
        self.write = write
        self.kill_at = kill_at
        self.seen: dict[str, Any] = {
            "batches": [],
            "losses": [],
            "lr": [],
            "validated": [],  # metrics of each validation
            "weights": [],  # of each validation
            "last": {},  # weights when training ends
            "best": {},  # weights that are tested
            "metrics": {},  # of the test
        }

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss")
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self.seen["batches"].append(digest(batch))
        self.seen["losses"].append(None if loss is None else float(loss))
        self.seen["lr"].append([group["lr"] for group in groups])
        self.write(self.seen)
        if self.kill_at and len(self.seen["batches"]) >= self.kill_at:
            deadline = time.monotonic() + WRITE_SECONDS
            # A thread may still be writing. If it wrote an older step, the next batch comes first.
            while newest_step() < self.kill_at - 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            if newest_step() >= self.kill_at - 2:
                os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """The validated weights: a callback with averages has not put the trained ones back."""
        if not trainer.sanity_checking:
            self.seen["weights"].append(digests(module.state_dict()))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.seen["validated"].append(numbers(trainer.callback_metrics))

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.seen["last"] = digests(module.state_dict())
        self.seen["exact"] = all(map(resumes_exactly, all_loaders(trainer.train_dataloader)))
        self.seen["num_workers"] = getattr(trainer.train_dataloader, "num_workers", None)

    def on_test_end(self, trainer: Any, module: Any) -> None:
        self.seen["best"] = digests(module.state_dict())
        self.seen["metrics"] = numbers(trainer.callback_metrics)


def train(write: Write, options: dict[str, Any], kill_at: int) -> None:
    """Run src/train.py with a TrainingRecorder after its own callbacks."""
    recorder = TrainingRecorder(write, kill_at)

    class RecordedTrainer(pl.Trainer):
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[*(callbacks or []), recorder], **more)

    pl.Trainer = RecordedTrainer  # type: ignore[misc]
    curves.save_figure = close_unseen
    with contextlib.suppress(SystemExit):
        project = owner.load()
        project.train.train(project.options.Options(**options))
    recorder.seen["files"] = result_files()
    write(recorder.seen)


def close_unseen(figure: Any, path: Path) -> None:
    """Close the figure instead of saving it, which takes longer than the run."""
    curves.pyplot().close(figure)
    path.touch()


def result_files() -> dict[str, int]:
    """The size of each result file of the run, without checkpoints, logs and pictures.

    Names of prepared data lose their digest, which changes with every option of the data.
    """
    sizes = {}
    for path in sorted(Path().rglob("*")):
        left_out = path.name.startswith((".", "events", "rank-", "curves"))
        if path.is_file() and not left_out and path.suffix not in (".ckpt", ".shard"):
            sizes[PREPARED.sub("", str(path))] = path.stat().st_size
    return sizes


def newest_step() -> int:
    """The step of the newest checkpoint; 0 for none."""
    path = files.newest_path(Path("outputs/checkpoints"))
    match = files.NAME.fullmatch(path.name) if path else None
    return int(match[2]) if match else 0


def digests(tensors: dict[str, Any]) -> dict[str, Any]:
    """Digests of the tensors by name, without torch.compile's part of it."""
    return {name.replace("_orig_mod.", ""): digest(tensor) for name, tensor in tensors.items()}


def numbers(metrics: Any) -> dict[str, float]:
    """Metrics as plain numbers."""
    return {name: float(value) for name, value in metrics.items()}


def predict(write: Write) -> None:
    """Run src/predict.py on the project's own sample, and record its standard output."""
    sys.argv = ["predict.py", *PREDICT]
    with Path("answer").open("w+", encoding="utf-8") as out:
        with contextlib.redirect_stdout(out):
            assert owner.load().predict.main() == 0
        out.seek(0)
        write({"answer": out.read()})


class Collect(pl.LightningModule):
    """A model that trains nothing, and records digests of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[str, list[int]] = {"train": [], "val": []}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen["train"] += map(digest, samples(batch))
        return self.weight * 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["val"] += map(digest, samples(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.0)


def iterate(write: Write, options: dict[str, Any]) -> None:
    """Iterate over the project's loaders for one epoch, as training does."""
    project = owner.load()
    single = {"batch_size": 1} if hasattr(project.options.Options, "batch_size") else {}
    seed = project.options.Options(**options).seed
    model = Collect()
    with project.dist.session() as cluster:
        pl.seed_everything(seed, verbose=False)  # as Run does, before the data
        # so that each reading augments alike
        data = Loaders(seed).resumable(project.data.Data(**{**options, **single}))
        strategy, devices, num_nodes = project.dist.get_initialization_info()
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[StepSeed(seed)],
        )
        trainer.fit(model, datamodule=data)
    write(model.seen)
