"""Pictures and tables of a run: curves, matrices."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smlightning.files import atomic_write

COLUMNS = 4  # of panels, at most
PANEL_SIZE = (4.3, 3.8)  # in inches
MARKED_POINTS = 30  # a line of fewer points shows them
# Panels from 0. Otherwise a thousandth of a GiB would look like a leak.
FROM_ZERO = ("data_wait", "host_gib", "gpu_gib")


def write_curves(rows: Sequence[Mapping[str, float]], directory: Path) -> None:
    """Write ``curves.csv`` and ``curves.png``.

    Metrics with the same last part of the name share a panel: ``train/loss`` and ``val/loss``.
    The picture leaves out the test's metrics and the speed. Every panel shows all steps: a metric
    of only the last step is a point at the right.

    Args:
        rows: each has ``step``, ``epoch`` and any metrics.
    """
    panels: dict[str, list[str]] = {}
    for name in write_csv(rows, directory):
        if name != "samples_per_second" and not name.startswith(("test/", "test_")):
            panels.setdefault(name.rpartition("/")[2], []).append(name)
    lines = max(1, math.ceil(len(panels) / COLUMNS))
    columns = max(1, math.ceil(len(panels) / lines))
    size = (PANEL_SIZE[0] * columns, PANEL_SIZE[1] * lines)
    figure, axes = pyplot().subplots(
        lines, columns, figsize=size, layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, names) in zip(axes.flat, panels.items(), strict=False):
        _draw_panel(axis, title, names, rows)
    save_figure(figure, directory / "curves.png")


def _draw_panel(
    axis: Any, title: str, names: Sequence[str], rows: Sequence[Mapping[str, float]]
) -> None:
    for name in names:
        steps = [row["step"] for row in rows if name in row]
        values = [row[name] for row in rows if name in row]
        axis.plot(steps, values, marker="o" if len(steps) < MARKED_POINTS else None, ms=3)
    axis.set(title=title, xlabel="step")
    axis.grid(alpha=0.3)
    if names != [title]:
        axis.legend(axis.lines, names)
    for row in (rows[0], rows[-1]):
        axis.axvline(row["step"], alpha=0)
    if title in FROM_ZERO:
        axis.axhline(0, alpha=0)  # before the limit: the margin above a flat curve is of all this
        axis.set_ylim(bottom=0)


def write_csv(rows: Sequence[Mapping[str, float]], directory: Path) -> list[str]:
    """Write ``curves.csv``; returns the names of its metrics, those without a ``/`` last."""
    names = dict.fromkeys(name for row in rows for name in row)  # unique, in their order
    metrics = [name for name in names if name not in ("step", "epoch")]
    metrics.sort(key=lambda name: "/" not in name)
    with atomic_write(directory / "curves.csv") as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["step", "epoch", *metrics])
        writer.writeheader()
        writer.writerows(rows)
    return metrics


def pyplot() -> Any:
    """matplotlib's pyplot, which draws only to files."""
    import matplotlib

    matplotlib.use("agg")  # a cluster has no display
    from matplotlib import pyplot

    return pyplot


def save_matrix(matrix: Any, labels: list[str], path: Path) -> None:
    """Write a picture of a confusion matrix of shares, 0 to 1, with the names of its classes."""
    from matplotlib.colors import PowerNorm

    side = min(4 + 0.2 * len(labels), 24)
    figure, axis = pyplot().subplots(figsize=(side, side), layout="constrained")
    norm = PowerNorm(0.5, 0, 1)  # the square root makes small shares visible
    axis.imshow(matrix.tolist(), cmap="Blues", norm=norm)
    axis.set(xlabel="Predicted class", ylabel="True class")
    text = {"labels": labels, "fontsize": 8, "parse_math": False}  # it may hold dollar signs
    axis.set_xticks(range(len(labels)), rotation=45, **text)
    axis.set_yticks(range(len(labels)), **text)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all, and close it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
    pyplot().close(figure)
