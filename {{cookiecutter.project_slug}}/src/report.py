"""What a person or a log reader sees: errors of one sentence, metric lines, tables and pictures.

Nothing heavy is imported at the top: the launcher reads this file to learn which metrics a job prints.
"""

import contextlib
import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Something the person running this can mend; its text says what was found, expected, and what to do."""


def write_failure(text: str) -> None:
    """Leave ``text`` where SageMaker looks for it: the first 1024 characters of output/failure are its FailureReason.

    The first text stays. The toolkit writes one of its own only where there is none, and that holds what it caught of
    standard error from the first line with the name of a Python exception: often not the cause.
    """
    if "SM_OUTPUT_DIR" in os.environ:
        with contextlib.suppress(OSError), (Path(os.environ["SM_OUTPUT_DIR"]) / "failure").open("x") as file:
            file.write(text)


METRICS = (
    "train/loss",
    "val/loss",
    "val/accuracy",
    "val/macro_f1",
    "test/loss",
    "test/accuracy",
    "test/macro_f1",
    "lr",
    "samples_per_second",
)
"""Every metric that a run prints; the launcher turns each into a SageMaker metric definition."""


def line(values: Mapping[str, float]) -> str:
    """One log line, ``name=value`` pairs: integers as they are, other numbers with six significant digits."""
    return " ".join(f"{k}={v}" if isinstance(v, int) else f"{k}={v:.6g}" for k, v in values.items())


def metric_regex(name: str) -> str:
    """A regular expression whose one group is the value of metric ``name``.

    It reads both what :func:`line` prints (``val/loss=0.71``) and the last line of a run (``test/accuracy 0.8123``).
    """
    return rf"(?:^|\s){name}[= ](-?[0-9.]+(?:e[-+]?[0-9]+)?|nan|-?inf)"


def write_curves(rows: Sequence[Mapping[str, float]], directory: Path) -> None:
    """Write ``curves.csv``, a row per logged step, and ``curves.png``: loss, accuracy and learning rate.

    Args:
        rows: each with ``step`` and any of :data:`METRICS`; a missing value is an empty cell and no point.
    """
    names = ["step", "epoch", *(m for m in METRICS if any(m in row for row in rows))]
    with replacing(directory / "curves.csv") as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)

    plt = _pyplot()
    panels = (("loss", ("train/loss", "val/loss")), ("score", ("val/accuracy", "val/macro_f1")), ("lr", ("lr",)))
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axis, (title, metrics) in zip(axes, panels, strict=True):
        for metric in metrics:
            points = [(row["step"], row[metric]) for row in rows if math.isfinite(row.get(metric, math.nan))]
            if points:
                axis.plot(*zip(*points, strict=True), label=metric, marker="o" if len(points) < 30 else None, ms=3)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    _save(figure, directory / "curves.png")


def write_confusion(matrix: Sequence[Sequence[float]], labels: Sequence[str], directory: Path) -> None:
    """Write ``confusion.png``: each true class's row as shares of that class, so that rare classes are seen.

    Args:
        matrix: shape (classes, classes), counts; rows are true classes, columns predicted ones.
    """
    from matplotlib.colors import PowerNorm

    plt = _pyplot()
    shares = [[cell / max(sum(row), 1) for cell in row] for row in matrix]
    size = min(4 + 0.2 * len(labels), 24)
    figure, axis = plt.subplots(figsize=(size + 1, size), layout="constrained")
    image = axis.imshow(shares, norm=PowerNorm(0.5, 0, 1), cmap="Blues")  # the root makes small shares visible
    axis.set(xlabel="predicted", ylabel="true", title="test set, share of each true class")
    if len(labels) <= 60:
        style: dict[str, Any] = {"fontsize": 8, "parse_math": False}  # a label may hold dollar signs
        axis.set_xticks(range(len(labels)), labels, rotation=90, **style)
        axis.set_yticks(range(len(labels)), labels, **style)
    figure.colorbar(image, shrink=0.8)
    _save(figure, directory / "confusion.png")


def folder(path: Path) -> Path:
    """``path``, made if it is not there.

    Raises:
        UserError: a file is in its place, or it may not be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Folder {path} cannot be made ({error.strerror}); name another place.") from None
    return path


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Print a two-column table, as wide as its content even where the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", title=title, title_justify="left", show_header=False)
    for row in rows.items():
        table.add_row(*map(Text, row))  # a plain string is markup: a path's [brackets] would be lost
    Console(width=None if os.isatty(1) else 100).print(table)


def quiet() -> None:
    """Silence what Lightning says on every run and nobody can act on."""
    import logging
    import warnings

    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # tiny texts: workers would only cost memory
        ".*isinstance.treespec, LeafSpec.*",  # torch 2.13 about Lightning 2.6.6
        ".*sync_dist=True.*",  # model.py logs what is summed over ranks already
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*number of training batches.*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message)


class replacing:
    """``with replacing(path) as temporary``: write the temporary file; it takes ``path``'s place if all went well.

    The rename is atomic on POSIX and Windows, so a reader sees the old file or the new one, never half of one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def _pyplot():  # type: ignore[no-untyped-def]
    import matplotlib

    matplotlib.use("agg")  # no display on a cluster
    from matplotlib import pyplot

    return pyplot


def _save(figure, path: Path) -> None:  # type: ignore[no-untyped-def]
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)
    _pyplot().close(figure)
