"""Which checkpoint a run may resume from, and why it may not."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.errors import UserError
from smlightning.options import Option
from smlightning.torch_files import ProgramError

SHOWN = 3  # differences that a sentence names


@dataclass(frozen=True)
class RunIdentity:
    """What a checkpoint and the run that resumes from it are compared by."""

    options: Mapping[str, Any]  # without those that may differ freely
    global_batch: int  # samples per optimizer step, over all ranks

    @classmethod
    def of(
        cls, options: Mapping[str, Any], declared: Mapping[str, Option], world_size: int
    ) -> "RunIdentity":
        """Of a run with these options: the global batch is their product with the world size."""
        free = {name for name, option in declared.items() if option.resume == "free"}
        kept = {name: value for name, value in options.items() if name not in free}
        per_rank = options.get("batch_size", 1) * options.get("accumulate_grad_batches", 1)
        return cls(kept, per_rank * world_size)


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from."""

    path: Path
    checksum: str  # first digits of its SHA-256
    complete: bool  # its training is, and only what comes after is left


@dataclass(frozen=True)
class ResumeDecision:
    """What is done about resuming, and the line that says so."""

    resume_point: ResumePoint | None = None
    message: str = ""

    def to_json(self) -> str:
        """For the other ranks."""
        resume_point = self.resume_point
        if resume_point is None:
            return json.dumps({"message": self.message})
        path = {
            "path": str(resume_point.path),
            "checksum": resume_point.checksum,
            "complete": resume_point.complete,
        }
        return json.dumps({"message": self.message, **path})

    @classmethod
    def from_json(cls, text: str) -> "ResumeDecision":
        values = json.loads(text)
        if "path" not in values:
            return cls(None, values["message"])
        resume_point = ResumePoint(Path(values["path"]), values["checksum"], values["complete"])
        return cls(resume_point, values["message"])


def decide(
    wanted: str,
    directory: Path,
    run: RunIdentity,
    declared: Mapping[str, Option],
    state_key: str,
    verified: Collection[str] | None = None,
) -> ResumeDecision:
    """Choose the checkpoint to resume from, or none.

    Args:
        wanted: ``auto``, ``never`` or a path.
        directory: where this run writes its own.
        declared: all options, for their defaults, and which of them may differ.
        state_key: of the callback in whose state a checkpoint has its identity and position.
        verified: the undamaged shards, as `files.whole` has them.

    Raises:
        UserError: the path holds no checkpoint that this run can resume from; or there are
            checkpoints in ``directory``, all damaged.
    """
    if wanted == "never":
        files.mark_discarded(directory)
        return ResumeDecision()
    path = files.newest(directory, verified) if wanted == "auto" else Path(wanted)
    if path is None:
        return ResumeDecision()
    state = _read_state(path, wanted, state_key, verified)
    if wanted == "auto" and files.finished(path):
        return ResumeDecision(
            message=f"resume: not from {path}, that run is finished; training from the start"
        )
    if wanted == "auto" and files.discarded(path):
        return ResumeDecision(
            message=f"resume: not from {path}, which --resume never discarded; training from the "
            "start"
        )
    position = _read_position(path, state)
    differing = differences(state, run, declared)
    _refuse_differences(wanted, path, directory, position, differing, declared)
    if path.parent.resolve() != directory.resolve():
        _refuse_to_replace(wanted, directory)
    complete = position.complete and not differing
    resume_point = ResumePoint(path, files.checksum(path), complete)
    return ResumeDecision(resume_point, f"resume: from {path}, {position}")


def _read_state(
    path: Path, wanted: str, state_key: str, verified: Collection[str] | None
) -> dict[str, Any]:
    """The callback's state in a checkpoint that is whole."""
    if not path.is_file():
        raise UserError(
            f"--resume {wanted!r}: no such checkpoint", "expected auto, never or a file"
        )
    cure = "name another one, or say auto"
    damaged = UserError(
        f"--resume {wanted!r}: the file, or one beside it that it names, is damaged or missing",
        cure,
    )
    try:
        checkpoint = files.load(path)
    except ProgramError:
        raise
    except Exception as error:  # unpickling knows no bounds
        raise damaged from error
    try:
        state: dict[str, Any] = checkpoint["callbacks"][state_key]
    except (KeyError, TypeError):
        raise UserError(f"{path} is not a checkpoint of this program", cure) from None
    if not files.whole(path, verified):
        raise damaged
    return state


def _read_position(path: Path, state: Mapping[str, Any]) -> Position:
    try:
        return Position.from_dict(state["position"])
    except (KeyError, ValueError):
        raise UserError(
            f"{path} was made by another version of smlightning, whose positions are others",
            "finish the run with that one, or train from the start with --resume never",
        ) from None


def differences(
    state: Mapping[str, Any], run: RunIdentity, declared: Mapping[str, Option]
) -> dict[str, str]:
    """What differs between a checkpoint and a run, by its name.

    An option added since is at its default in the checkpoint; one that no longer exists is left
    out.
    """
    defaults = {name: option.default for name, option in declared.items()}
    then = {"global batch": state["global_batch"], **defaults, **state["options"]}
    now = {"global batch": run.global_batch, **run.options}
    return {
        name: f"{name} was {then.get(name)!r} and is {value!r} now"
        for name, value in now.items()
        if then.get(name) != value
    }


def _refuse_differences(
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
    fixed = [text for name, text in differing.items() if not _path_suffices(name, declared)]
    listed = _listed(fixed or list(differing.values()))
    if wanted == "auto" and differing:
        by_path = "" if fixed else f"pass --resume {path} to resume with the new ones, "
        raise UserError(
            f"{directory} holds an unfinished run, {position}, and {listed}",
            f"rerun with the original options to resume, {by_path}pass --resume never to discard "
            "it, or name another --output_dir to keep it",
        )
    if fixed:
        raise UserError(
            f"--resume {wanted!r}: {listed}; with that the optimizer's state, the position in the "
            "data, or whether validation comes next would not be valid",
            "rerun with the original value, or train from the start with --resume never",
        )


def _path_suffices(name: str, declared: Mapping[str, Option]) -> bool:
    return name in declared and declared[name].resume == "path"


def _listed(texts: list[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _refuse_to_replace(wanted: str, directory: Path) -> None:
    """A checkpoint from elsewhere must not take the place of this folder's unfinished run."""
    known = files.numbered(directory)
    newest = known[0][1] if known else None
    if newest and not files.finished(newest) and not files.discarded(newest):
        raise UserError(
            f"--resume {wanted!r}: {directory} holds an unfinished run, which this one would "
            "replace",
            "name another --output_dir, or resume that one: --resume auto",
        )


def refuse_shorter_training(position: Position, epochs: int | None, steps: int) -> None:
    """Refuse a training that ends before the place where it would resume.

    Args:
        epochs, steps: of the whole training; -1 or None: no limit.
    """
    lengths = {"epochs": (position.next_start()[0], epochs), "max_steps": (position.step, steps)}
    for option, (trained, limit) in lengths.items():
        if limit not in (None, -1) and trained > limit:
            raise UserError(
                f"The checkpoint has {trained} {option.removeprefix('max_')} behind it, and "
                f"{option} is {limit}",
                f"raise --{option} to {trained} or more, or train from the start with "
                "--resume never",
            )


def data_start(epoch: int, batch: int, batches_per_epoch: int) -> str:
    """How exact a resumed run is whose loader can neither start within an epoch nor be told to."""
    if not batch:
        return (
            f"from the start of epoch {epoch + 1}; its loader is a stream or one of your own, "
            "which may give another order now"
        )
    known = batches_per_epoch > 0
    left = f"the {batches_per_epoch - batch} batches left" if known else "what is left"
    return (
        f"inexact: a stream, or a loader of your own, begins anew for {left} of epoch "
        f"{epoch + 1}, so some samples come twice in it and others not at all; a DataLoader of a "
        "data set with rows resumes exactly, and so does a loader with state_dict"
    )


def refuse_another_architecture(module: Any, state: Mapping[str, Any], *_: Any) -> None:
    """Refuse weights of other names or shapes than the module's; a hook that goes before
    ``load_state_dict``.
    """
    if not module.strict_loading:
        return
    there, here = _shapes(state), _shapes(module.state_dict())
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if not differing:
        return
    listed = _listed(
        [
            f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
            for name in differing
        ]
    )
    raise UserError(
        f"The checkpoint is of another architecture ({listed})",
        "restore the old one to resume, or train from the start with --resume never",
    )


def _shapes(weights: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(value.shape)
        for name, value in weights.items()
        if isinstance(value, torch.Tensor)
    }


def refuse_another_optimizer(then: list[str], now: list[str]) -> None:
    """Refuse the state of optimizers of other classes.

    Args:
        then, now: the names of their classes.
    """
    if then != now:
        raise UserError(
            f"The checkpoint is of the optimizer {', '.join(then)}, and configure_optimizers gives "
            f"{', '.join(now)}",
            "restore the old one to resume, or train from the start with --resume never",
        )
