"""Lines of a log: metrics, the result; warnings to silence."""

import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from smlightning.errors import is_disk_full
from smlightning.files import ensure_dir


def format_metrics(values: Mapping[str, float]) -> str:
    """One log line of ``name=value`` pairs: integers as they are, others with six digits."""
    pairs = []
    for name, value in values.items():
        pairs.append(f"{name}={value}" if isinstance(value, int) else f"{name}={value:.6g}")
    return " ".join(pairs)


def as_number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float; None if it is no single number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # None, a text, several numbers
        return None


# The part of a metric's name that says: of validation.
OF_VALIDATION = re.compile(
    r"(?<![a-z])(validation|validate|valid|val|evaluation|eval|dev)(?![a-z])", re.IGNORECASE
)

# Peak memory in GiB; a run prints it where it can be measured. METRICS does not list it.
MEMORY = ("host_gib", "gpu_gib")


def metric_regex(name: str) -> str:
    """A regular expression whose one group is the value of metric ``name``.

    It matches the lines of `format_metrics` (``val/loss=0.71``) and the last line of a run
    (``test/loss 0.8123``).
    """
    return rf"(?:^|\s){re.escape(name)}[= ](-?[0-9.]+(?:e[-+]?[0-9]+)?|nan|-?inf)"


def name_in_test(monitor: str, logged: Iterable[str]) -> str | None:
    """The name that a test gives a metric of validation: ``test/loss`` for ``val/loss``,
    ``test_loss`` for ``val_loss``; None if it logs no such metric.

    Upper and lower case, and the signs between words, make no difference.
    """
    names = {_words(name): name for name in logged}
    base = re.sub(r"/dataloader_idx_\d+$", "", monitor)
    usual = [OF_VALIDATION.sub("test", name, count=1) for name in (monitor, base)]
    known = (names.get(_words(name)) for name in (*usual, f"test/{base}"))
    return next(filter(None, known), None)


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.lower())


def print_result(metrics: Mapping[str, Any], monitor: str, more: Mapping[str, str]) -> None:
    """Print the test's metrics and ``more``, one a line; the last line is the monitored metric."""
    scores = {name: float(value) for name, value in metrics.items()}
    table = {name: f"{value:.4f}" for name, value in scores.items()}
    table.update(more)
    width = max(map(len, table), default=0)
    for name, text in table.items():
        print(f"{name:<{width}}  {text}")
    found = name_in_test(monitor, scores)
    if found:
        print(f"{found} {scores[found]:.4f}", flush=True)
    else:
        print(
            f"warning: the test logged {', '.join(scores) or 'nothing'}; expected "
            f"{OF_VALIDATION.sub('test', monitor, count=1)}, since MONITOR is {monitor}; log it in "
            "test_step, or change MONITOR in src/options.py",
            file=sys.stderr,
        )


# Warnings of every run for which the user can do nothing.
SILENCED = (
    ".*does not have many workers.*",  # small texts: workers would only cost memory
    ".*isinstance.treespec, LeafSpec.*",  # torch 2.13 about Lightning 2.6.6
    ".*sync_dist=True.*",  # the model logs sums over ranks
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*number of training batches.*smaller than the logging interval.*",
    ".*your dataloader is not resumable.*",  # smlightning.checkpoints prints it where it is true
    ".*srun. command is available.*",  # Slurm is there; cluster.slurm warns in a job
)


def quiet() -> None:
    """Silence Lightning's usual messages, except those of its callbacks and profilers."""
    for library in ("pytorch_lightning", "lightning.pytorch"):  # one_lightning.py: either is real
        logging.getLogger(library).setLevel(logging.WARNING)
        for spoken in ("callbacks", "profilers"):
            logging.getLogger(f"{library}.{spoken}").setLevel(logging.INFO)
    for message in SILENCED:
        warnings.filterwarnings("ignore", message)
    threading.excepthook = _print_thread_exception


def _print_thread_exception(args: Any) -> None:
    """A ``threading.excepthook`` that is silent if TensorBoard's writer has no space on the disk.

    The main thread gets the same error and reports it.
    """
    is_tensorboard = type(args.thread).__name__ == "_AsyncWriterThread"
    if not is_tensorboard or not is_disk_full(args.exc_value):
        threading.__excepthook__(args)


def output_dirs(output_dir: str) -> tuple[Path, Path]:
    """The folders for curves and model; creates them if they are missing.

    SM_OUTPUT_DATA_DIR and SM_MODEL_DIR on SageMaker, else ``output_dir`` and its folder ``model``.
    """
    outputs = os.environ.get("SM_OUTPUT_DATA_DIR") or output_dir
    model_dir = os.environ.get("SM_MODEL_DIR") or Path(output_dir) / "model"
    return ensure_dir(Path(outputs)), ensure_dir(Path(model_dir))
