"""From a checkpoint back into a run: the ranks choose one, and set Lightning's loops from it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from smlightning.checkpoints import files, resume
from smlightning.checkpoints.lock import lock
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.resume import ResumePoint, RunIdentity
from smlightning.cluster import exchange, session
from smlightning.data import fingerprint
from smlightning.errors import UserError
from smlightning.options import Option
from smlightning.training import loop


@dataclass(frozen=True)
class Choice:
    """The ranks' agreement before training.

    Attributes:
        number: of this run's first checkpoint.
        point: the checkpoint to resume from; None: the run starts anew.
        lock: of the folder, on rank 0.
    """

    number: int
    point: ResumePoint | None
    lock: Any


def choose(
    wanted: str,
    directory: Path,
    run: RunIdentity,
    declared: Mapping[str, Option],
    state_key: str,
) -> Choice:
    """The checkpoint that all ranks resume from: rank 0's disk decides. Collective.

    Args:
        wanted, declared, state_key: as of `resume.decide`.

    Raises:
        UserError: as `resume.decide` and `lock` do; or a host lacks a file.
    """
    locks: list[Any] = [None]

    def decide() -> list[Any]:
        locks[0] = lock(directory)
        point = resume.decide(wanted, directory, run, declared, state_key)
        found = [str(point.path), point.complete, point.with_best] if point else []
        return [files.next_number(directory), *found]

    number, *found = exchange.from_rank_0("resume", decide)
    path, complete, with_best = found or ("", False, True)
    if session.current_cluster().local_rank == 0:
        files.remove_temporary(directory)
    check_hosts(path, with_best)
    point = ResumePoint(Path(path), complete, with_best) if path else None
    return Choice(number, point, locks[0])


def check_hosts(path: str, with_best: bool) -> None:
    """Raise a UserError if another host than rank 0's lacks a file of the checkpoint. Collective.

    Args:
        path: "" if there is no checkpoint.
    """
    cluster = session.current_cluster()
    problem = ""
    if path and cluster.local_rank == 0 and cluster.rank != 0:
        try:
            files.verified(Path(path), with_best)
        except UserError as error:
            problem = error.problem
    problems = exchange.to_rank_0("checkpoint files", problem)
    missing = exchange.from_rank_0(
        "missing files",
        lambda: [[cluster.name(rank), text] for rank, text in enumerate(problems) if text][:1],
    )
    for name, text in missing:
        raise UserError(
            f"rank 0 resumes from {path}, but on {name} {text}",
            "share the folder of checkpoints between the hosts, or copy rank 0's to each",
        )


def data_of(trainer: pl.Trainer, dataset: str) -> str:
    """The data module's own fingerprint, or one of the files that rank 0 has. Collective."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
    given = getattr(datamodule, "fingerprint", "")
    if callable(given) or isinstance(given, set | frozenset):
        raise UserError(
            f"{type(datamodule).__name__}.fingerprint is a {type(given).__name__}, whose text "
            "is another one in each run",
            "set self.fingerprint to a text in setup",
        )
    return str(given) or exchange.from_rank_0(
        "files of the data", lambda: fingerprint.of_files(dataset, os.environ)
    )


def check_data(then: str, now: str) -> None:
    """Raise a UserError for other data, in which the position means nothing."""
    if then != now:
        raise UserError(
            "The data has changed since the checkpoint was written, so its position in the "
            "data is not valid",
            "restore the old data, or train from the start with --resume never",
        )


def set_loops(checkpoint: dict[str, Any], position: Position, trainer: pl.Trainer) -> None:
    """Write the position into the states of Lightning's loops, which the Trainer loads next."""
    epoch, batch = position.next_start()
    batches, all_batches = position.rank_counts(trainer.accumulate_grad_batches)
    loop.set_progress(
        checkpoint["loops"]["fit_loop"],
        step=position.step,
        epoch=epoch,
        batches=batches,
        all_batches=all_batches,
        last=batch > 0 and position.epoch_trained,
        validate=position.validation_next,
        complete=position.complete,
        max_steps=trainer.max_steps,
    )
    trainer.should_stop = position.complete  # by EarlyStopping, say
