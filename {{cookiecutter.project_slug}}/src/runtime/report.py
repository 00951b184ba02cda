"""What a person or a log reader sees: errors of one sentence, metric lines, tables and pictures.

Nothing heavy is imported at the top: the launcher uses this file too.
"""

import contextlib
import csv
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Something the person running this can fix; its text says what was found, expected, and what to do."""


def sentence(error: BaseException) -> str:
    """What to say in place of a stack trace; empty where the error is no mistake of the user's."""
    if isinstance(error, BrokenPipeError):  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return "Nothing reads standard output any more; start the command again with --resume auto."
    if str(error).startswith("Early stopping conditioned on"):  # Lightning's, a RuntimeError
        return f"{error}. Where training may end before that is logged: EarlyStopping(..., strict=False)."
    # Lightning's words, and torch's.
    if re.search("parameters that were not used in producing (the )?loss", str(error)):
        return (
            "On several ranks every parameter has to take part in the loss of every step, and some do not; freeze them "
            "by requires_grad_(False), or add find_unused_parameters=True to ClusterStrategy in src/dist.py."
        )
    if type(error).__name__ == "MisconfigurationException" or isinstance(error, UserError):
        return str(error)
    return full_disk(error)


def full_disk(error: BaseException) -> str:
    """What to say where a full disk is the cause; else empty. TensorBoard's logger wraps it in an error of its own."""
    for cause in error_chain(error):
        if re.search("No space left on device|Disk quota exceeded", str(cause)):
            line = f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
            return f"{line}; free some space and start the command again with --resume auto."
    return ""


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, the innermost last."""
    while error:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def root_cause(error: BaseException) -> str:
    """The innermost cause, in one line: libraries wrap it in layers that say less."""
    *_, error = error_chain(error)
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


@contextlib.contextmanager
def optional(what: str) -> Iterator[None]:
    """A failure in here is a warning: no picture is worth a trained model."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {root_cause(error)}"
        print(f"warning: {what} failed ({reason}); nothing else is affected", file=sys.stderr)


def write_failure(text: str) -> None:
    """Leave ``text`` where SageMaker looks for it: the first 1024 characters of output/failure are its FailureReason.

    The first text stays. The toolkit writes one of its own only where there is none, and that holds what it caught of
    standard error from the first line with the name of a Python exception: often not the cause.
    """
    if "SM_OUTPUT_DIR" in os.environ:
        with contextlib.suppress(OSError), (Path(os.environ["SM_OUTPUT_DIR"]) / "failure").open("x") as file:
            file.write(text)


def format_metrics(values: Mapping[str, float]) -> str:
    """One log line, ``name=value`` pairs: integers as they are, other numbers with six significant digits."""
    return " ".join(f"{k}={v}" if isinstance(v, int) else f"{k}={v:.6g}" for k, v in values.items())


def metric_regex(name: str) -> str:
    """A regular expression whose one group is the value of metric ``name``.

    It reads both what :func:`format_metrics` prints (``val/loss=0.71``) and the last line of a run
    (``test/loss 0.8123``).
    """
    return rf"(?:^|\s){re.escape(name)}[= ](-?[0-9.]+(?:e[-+]?[0-9]+)?|nan|-?inf)"


def write_curves(rows: Sequence[Mapping[str, float]], directory: Path) -> None:
    """Write ``curves.csv`` and ``curves.png``, which has a panel for each last part of a metric's name.

    ``train/loss`` and ``val/loss`` share a panel, ``lr`` has its own; the test's single numbers and speed have none.

    Args:
        rows: each with ``step``, ``epoch`` and any metrics; a missing value is an empty cell and no point.
    """
    panels: dict[str, list[str]] = {}
    for name in write_csv(rows, directory):
        if name != "samples_per_second" and not name.startswith("test/"):
            panels.setdefault(name.rpartition("/")[2], []).append(name)
    columns = min(len(panels), 4) or 1
    lines = -(-len(panels) // columns) or 1
    size = (4.3 * columns, 3.8 * lines)
    figure, axes = pyplot().subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, names) in zip(axes.flat, panels.items(), strict=False):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axis.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, ms=3)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(axis.lines, names)
    save_figure(figure, directory / "curves.png")


def write_csv(rows: Sequence[Mapping[str, float]], directory: Path) -> list[str]:
    """Write ``curves.csv``; the names of its metrics, those without a ``/`` last."""
    found = dict.fromkeys(name for row in rows for name in row if name not in ("step", "epoch"))
    metrics = sorted(found, key=lambda name: "/" not in name)
    with atomic_write(directory / "curves.csv") as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["step", "epoch", *metrics])
        writer.writeheader()
        writer.writerows(rows)
    return metrics


def ensure_dir(path: Path) -> Path:
    """``path``, made if it is not there; UserError where a file is in its place, or it may not be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Folder {path} cannot be made ({error.strerror}); name another place.") from None
    return path


def output_dirs(output_dir: str) -> tuple[Path, Path]:
    """Folders of curves and of the model, made: SageMaker's (SM_OUTPUT_DATA_DIR, SM_MODEL_DIR), else `output_dir`'s."""
    outputs = os.environ.get("SM_OUTPUT_DATA_DIR") or output_dir
    model_dir = os.environ.get("SM_MODEL_DIR") or Path(output_dir) / "model"
    return ensure_dir(Path(outputs)), ensure_dir(Path(model_dir))


def of_the_test(monitor: str) -> str:
    """What the monitored metric of validation is called in the test: ``val/loss`` is ``test/loss`` there."""
    return f"test/{monitor.removeprefix('val/')}"


def print_result(metrics: Mapping[str, Any], monitor: str, more: Mapping[str, str]) -> None:
    """Print the test's metrics and `more`, a line each, and last the monitored metric alone."""
    scores = {name: float(value) for name, value in metrics.items() if name.startswith("test/")}
    table = {name: f"{value:.4f}" for name, value in scores.items()} | {**more}
    for name, text in table.items():
        print(f"{name:<{max(map(len, table))}}  {text}")
    monitored = of_the_test(monitor)
    if monitored in scores:
        print(f"{monitored} {scores[monitored]:.4f}", flush=True)
    else:
        print(f"warning: the test gave no {monitored}, as MONITOR in options.py asks", file=sys.stderr)


def quiet() -> None:
    """Silence what Lightning says on every run and nobody can act on; its callbacks' messages stay."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    logging.getLogger("pytorch_lightning.callbacks").setLevel(logging.INFO)
    shown = threading.excepthook

    def but_for_tensorboards(args: Any) -> None:
        """Its thread hands an error on to the main one, where a full disk becomes a sentence."""
        if type(args.thread).__name__ != "_AsyncWriterThread" or not full_disk(args.exc_value):
            shown(args)

    if getattr(shown, "__name__", "") != but_for_tensorboards.__name__:
        threading.excepthook = but_for_tensorboards
    for message in (
        ".*does not have many workers.*",  # tiny texts: workers would only cost memory
        ".*isinstance.treespec, LeafSpec.*",  # torch 2.13 about Lightning 2.6.6
        ".*sync_dist=True.*",  # the model logs what is summed over ranks already
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*number of training batches.*smaller than the logging interval.*",
        ".*your dataloader is not resumable.*",  # checkpoints.py says it where it is so
    ):
        warnings.filterwarnings("ignore", message)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """``with atomic_write(path) as temporary``: write the temporary file; it takes ``path``'s place if all went well.

    The rename is atomic on POSIX and Windows, so a reader sees the old file or the new one, never half of one.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def pyplot() -> Any:
    """matplotlib's, drawing to files alone."""
    import matplotlib

    matplotlib.use("agg")  # no display on a cluster
    from matplotlib import pyplot

    return pyplot


def save_matrix(figure: Any, path: Path) -> None:
    """Write a figure of a matrix of shares, 0 to 1, whose rows and columns have names."""
    from matplotlib.colors import PowerNorm

    axis = figure.axes[0]
    axis.images[0].set_norm(PowerNorm(0.5, 0, 1))  # the root makes small shares visible
    side = min(4 + 0.2 * len(axis.get_yticklabels()), 24)
    figure.set(size_inches=(side, side), layout_engine="constrained")
    for name in (*axis.get_xticklabels(), *axis.get_yticklabels()):
        name.set(fontsize=8, parse_math=False)  # it may hold dollar signs
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all, and let go of it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
    pyplot().close(figure)
