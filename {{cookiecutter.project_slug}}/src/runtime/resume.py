"""Which checkpoint a run may resume from, and in one sentence why it may not."""

import errno
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, SoftFileLock, Timeout

from runtime.checkpoint_files import NAME, finished, load, newest, whole
from runtime.command_line import Option
from runtime.prepared import digest
from runtime.report import UserError, ensure_dir

LOCK_SECONDS = 15  # loader workers of a process that was killed live on for 5 s, and keep its lock


def lock(directory: Path) -> FileLock:
    """Lock the folder as long as this process lives; UserError where another run has it or it cannot be written to."""
    made = FileLock(ensure_dir(directory).absolute() / ".lock", is_singleton=True)
    try:
        made.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        # Without flock, filelock 4 leaves a file as a mark, which a killed process of another host does not take away.
        left = f" (or remove {made.lock_file}, if there is none)" if isinstance(made, SoftFileLock) else ""
        raise UserError(
            f"Another run is writing to {directory}; wait for its end{left}, or name another --output_dir."
        ) from None
    except (NotImplementedError, OSError) as error:  # the first is filelock 3's, as in older images
        if isinstance(error, OSError) and error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"Nothing can be written to {directory} ({error.strerror}); name another --output_dir."
            ) from None
        print(f"warning: files cannot be locked in {directory}; let no other run write there", file=sys.stderr)
    return made


def decide(
    wanted: str, directory: Path, run: Mapping[str, Any], declared: Mapping[str, Option], read: str
) -> dict[str, Any]:
    """Choose a checkpoint and say which: its ``path``, ``digest``, and whether its training is ``done``; or nothing.

    Args:
        wanted: ``auto``, ``never`` or a path.
        run: ``options``, ``global_batch`` and ``position``, as a checkpoint has them.
        declared: all options, for their defaults, and which may differ.
        read: name of the callback whose state has all that.

    Raises:
        UserError: the path holds no checkpoint that this run can resume from; or there are checkpoints, all damaged.
    """
    path = newest(directory) if wanted == "auto" else None if wanted == "never" else Path(wanted)
    if path is None:
        return {}
    if not path.is_file():
        raise UserError(f"--resume {wanted!r}: no such checkpoint; expected auto, never or a file.")
    if not whole(path):
        raise UserError(
            f"--resume {wanted!r}: the file, or that of the best weights beside it, is damaged or missing; "
            "name another one, or say auto."
        )
    try:
        state = load(path)["callbacks"][read]
    except Exception as error:  # unpickling knows no bounds
        raise UserError(f"{path} is not a checkpoint of this program ({type(error).__name__}).") from error
    if wanted == "auto" and finished(path):
        print(f"resume: not from {path}, that run is finished; training from the start", flush=True)
        return {}
    if not run["position"].keys() <= state["position"].keys():
        raise UserError(
            f"{path} was made by an older version of src/runtime; finish the run with that one, or train from the "
            "start with --resume never."
        )
    at = "step {step} of {total}".format(**state["position"])
    differing = differences(state, run, declared)
    fixed = [name for name in differing if name not in declared or declared[name].resume != "path"]
    named = [differing[name] for name in fixed or differing]
    said = ", ".join(named[:3]) + f" and {len(named) - 3} more" * (len(named) > 3)
    if wanted == "auto" and differing:
        raise UserError(
            f"{directory} holds an unfinished run, {at}, and {said}; rerun with the "
            f"original options to resume, pass {'' if fixed else f'--resume {path} to resume with the new ones, '}"
            "--resume never to discard it, or name another --output_dir to keep it."
        )
    if fixed:
        raise UserError(
            f"--resume {wanted!r}: {said}; with that the optimizer's state, the position in the data, or "
            "whether validation comes next would not be valid: rerun with the original value, or train from the start "
            "with --resume never."
        )
    if path.parent.resolve() != directory.resolve() and (own := newest(directory)) and not finished(own):
        raise UserError(
            f"--resume {wanted!r}: {directory} holds an unfinished run of its own, which this one would replace; "
            "name another --output_dir, or resume that one: --resume auto."
        )
    print(f"resume: from {path}, {at}", flush=True)
    known = NAME.fullmatch(path.name)
    done = state["position"]["done"] and not differing
    return {"path": str(path), "digest": known[3] if known else digest(path), "done": done}


def differences(state: Mapping[str, Any], run: Mapping[str, Any], declared: Mapping[str, Option]) -> dict[str, str]:
    """What differs between a checkpoint and a run; an option added since is at its default in the checkpoint."""
    stored = {name: option.default for name, option in declared.items()} | state["options"]
    was = {"global batch": state["global_batch"], **stored}
    here = {"global batch": run["global_batch"], **run["options"]}
    return {k: f"{k} was {was.get(k)!r} and is {v!r} now" for k, v in here.items() if was.get(k) != v}


def inexact(epoch: int, batch: int, batches: int) -> str:
    """How exact a resumed run is whose data cannot start within an epoch."""
    if not batch:
        return f"from the start of epoch {epoch + 1}; Data has no `start`, so its loader may shuffle differently now"
    left = f"the {batches - batch} batches left" if batches else "what is left"
    return (
        f"inexact, since Data has no `start`: its loader begins anew for {left} of epoch {epoch + 1}, "
        "so some samples come twice in it and others not at all"
    )


def refuse_another_architecture(module: Any, state: Mapping[str, Any], *_: Any) -> None:
    """Refuse weights of other names or shapes than the module's; a hook that goes before ``load_state_dict``."""
    there, here = (
        {name: tuple(value.shape) for name, value in weights.items() if isinstance(value, torch.Tensor)}
        for weights in (state, module.state_dict())
    )
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if differing and module.strict_loading:
        shown = "; ".join(f"{n}: {there.get(n, 'absent')} there, {here.get(n, 'absent')} here" for n in differing[:3])
        more = f" and {len(differing) - 3} more" * (len(differing) > 3)
        raise UserError(
            f"The checkpoint is of another architecture ({shown}{more}); restore the old one to resume, or train "
            "from the start with --resume never."
        )
