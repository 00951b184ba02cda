"""Chooses the checkpoint from which a run resumes, or explains why it cannot."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.errors import UserError
from smlightning.options import Option


@dataclass(frozen=True)
class RunIdentity:
    """The facts in which a checkpoint and the run that resumes from it are compared."""

    options: Mapping[str, Any]  # without those that may differ freely
    global_batch: int  # samples per optimizer step, over all ranks

    @classmethod
    def of(
        cls, options: Mapping[str, Any], declared: Mapping[str, Option], world_size: int
    ) -> "RunIdentity":
        """The identity of a run with these options on ``world_size`` ranks."""
        free = {name for name, option in declared.items() if option.resume == "free"}
        kept = {name: value for name, value in options.items() if name not in free}
        per_rank = options.get("batch_size", 1) * options.get("accumulate_grad_batches", 1)
        return cls(kept, per_rank * world_size)


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from."""

    path: Path
    complete: bool  # its training is, and only what comes after is left
    with_best: bool = True  # the best weights are undamaged


def decide(
    wanted: str,
    directory: Path,
    run: RunIdentity,
    declared: Mapping[str, Option],
    state_key: str,
) -> ResumePoint | None:
    """Choose the checkpoint to resume from, and print it; None: train from the start.

    Args:
        wanted: ``auto``, ``never`` or a path.
        directory: where this run writes its own.
        declared: all options, for their defaults, and which of them may differ.
        state_key: of the callback whose state holds a checkpoint's identity.

    Raises:
        UserError: the path holds no checkpoint that this run can resume from; or there are
            checkpoints in ``directory``, none of them whole.
    """
    if wanted == "never":
        return None
    named = [_named(wanted)] if wanted != "auto" else []
    paths = named or [path for _, path in files.numbered(directory)]
    if not paths:
        return None
    path, content, with_best = files.newest_verified(paths)
    if not named and files.mark_of(path):
        return None
    try:
        state = content["callbacks"][state_key]
        position = Position(**content["position"])
        is_of_this_version = asdict(position) == content["position"]
    except (KeyError, TypeError):
        is_of_this_version = False
    if not is_of_this_version:
        raise files.other_version(path)
    differing = differences(state, run, declared)
    _check_differences(wanted, path, directory, position, differing, declared)
    if path.parent.resolve() != directory.resolve():
        _check_replacement(wanted, directory)
    print(f"resume: from {path}, {position}", flush=True)
    return ResumePoint(path, position.complete and not differing, with_best)


def _named(wanted: str) -> Path:
    """The user's path."""
    path = Path(wanted)
    hint = "pass auto, never or a file such as checkpoints/000007-step000390-….ckpt"
    if not path.exists():
        raise UserError(f"--resume {wanted!r}: there is no such file", hint)
    if not files.NAME.fullmatch(path.name) or not path.is_file():
        raise UserError(
            f"--resume {wanted!r} is not a checkpoint of this package, or is renamed", hint
        )
    return path


def differences(
    state: Mapping[str, Any], run: RunIdentity, declared: Mapping[str, Option]
) -> dict[str, str]:
    """The differences between a checkpoint and a run, by name.

    An option added since is at its default in the checkpoint; one that no longer exists is ignored.
    """
    defaults = {name: option.default for name, option in declared.items()}
    then = {"global batch": state["global_batch"], **defaults, **state["options"]}
    now = {"global batch": run.global_batch, **run.options}
    return {
        name: f"{name} was {then.get(name)!r} and is {value!r} now"
        for name, value in now.items()
        if then.get(name) != value
    }


def _check_differences(
    wanted: str,
    path: Path,
    directory: Path,
    position: Position,
    differing: Mapping[str, str],
    declared: Mapping[str, Option],
) -> None:
    """``auto`` allows none; a path allows those of options that are declared with
    ``resume="path"``.
    """
    by_path = {name for name, option in declared.items() if option.resume == "path"}
    fixed = [text for name, text in differing.items() if name not in by_path]
    listed = ", ".join(fixed or differing.values())
    if wanted == "auto" and differing:
        advice = "" if fixed else f"pass --resume {path} to resume with the new options, "
        raise UserError(
            f"{directory} holds an unfinished run, {position}, and {listed}",
            f"rerun with the original options to resume, {advice}pass --resume never to discard "
            "it, or set another --output_dir to keep it",
        )
    if fixed:
        raise UserError(
            f"--resume {wanted!r}: {listed}; the checkpoint's optimizer state or position does not "
            "fit the new value",
            "rerun with the original value, or train from the start with --resume never",
        )


def _check_replacement(wanted: str, directory: Path) -> None:
    """Raise a UserError if a checkpoint from elsewhere would replace an unfinished run here."""
    newest = files.newest_path(directory)
    if newest and not files.mark_of(newest):
        raise UserError(
            f"--resume {wanted!r}: {directory} holds an unfinished run, which this one would "
            "replace",
            "set another --output_dir, or resume the run there with --resume auto",
        )


def begin_anew(directory: Path) -> None:
    """Print that the run in ``directory``, if any, is not resumed; no later run resumes it, either.

    Raises:
        UserError: the folder could not be marked.
    """
    path = files.newest_path(directory)
    if not path:
        return
    mark = files.mark_of(path) or files.DISCARDED
    files.mark(directory, mark, "free some space")
    print(f"resume: the run of {path} is {mark}; training from the start", flush=True)


def check_length(position: Position, max_steps: int) -> None:
    """Raise a UserError if training would end before the step where it resumes.

    Lightning reports too few epochs.
    """
    if max_steps != -1 and position.step > max_steps:
        raise UserError(
            f"The checkpoint is at step {position.step}, but max_steps is {max_steps}",
            f"raise --max_steps to {position.step} or more, or train from the start with "
            "--resume never",
        )


def check_optimizers(then: list[str], now: list[str]) -> None:
    """Raise a UserError if the optimizers' classes differ: torch would load their state anyway.

    Args:
        then, now: the names of their classes.
    """
    if then != now:
        raise UserError(
            f"The checkpoint has the optimizer {', '.join(then)}, and configure_optimizers returns "
            f"{', '.join(now)}",
            "restore the old optimizer, or train from the start with --resume never",
        )


def data_start(epoch: int, batch: int) -> str:
    """A sentence that says where data begins if the loader cannot start within an epoch."""
    start = f"the loader (a stream or your own class) begins epoch {epoch + 1}"
    if not batch:
        return f"{start}, perhaps in another order"
    return (
        f"inexact: {start} again, but {batch} of its batches are done: some samples come twice, "
        "others never; use a DataLoader of a data set with rows, or a loader with state_dict"
    )
