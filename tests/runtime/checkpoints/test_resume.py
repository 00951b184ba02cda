"""The folder, --resume and the run's identity decide from which checkpoint a run resumes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning.checkpoints import files, resume
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.resume import ResumePoint, RunIdentity
from smlightning.errors import UserError
from smlightning.options import Option

DECLARED = {
    "lr": Option(float, 0.1, "", "optimizer"),
    "seed": Option(int, 0, "", "data"),
    "max_steps": Option(int, -1, "", "path"),
    "clip": Option(float, 1.0, "", "path"),
    "log_every": Option(int, 50, "", "free"),
    "batch_size": Option(int, 8, "", "free"),
}
DEFAULTS = {name: option.default for name, option in DECLARED.items()}


def run(world_size: int = 2, **options: Any) -> RunIdentity:
    return RunIdentity.of({**DEFAULTS, **options}, DECLARED, world_size)


def write(directory: Path, at: Position | None = None, **stored: Any) -> Path:
    """A checkpoint of a run with default options, except for ``stored``."""
    at = at or Position(step=3, total_steps=36)
    identity = run()
    mine = {
        "options": dict(identity.options),
        "global_batch": identity.global_batch,
        **stored,
    }
    return files.write(directory, at, {"callbacks": {"Checkpoints": mine}})


def decide(wanted: str, directory: Path, identity: RunIdentity | None = None) -> Any:
    return resume.decide(wanted, directory, identity or run(), DECLARED, "Checkpoints")


def refusal(wanted: str, directory: Path, identity: RunIdentity | None = None) -> UserError:
    with pytest.raises(UserError) as refused:
        decide(wanted, directory, identity)
    return refused.value


def test_the_newest_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decide("auto", tmp_path) is None
    write(tmp_path)
    path = write(tmp_path, Position(step=6, total_steps=36))
    assert decide("auto", tmp_path) == ResumePoint(path, complete=False)
    assert f"resume: from {path}, step 6 of 36" in capsys.readouterr().out
    assert decide("never", tmp_path) is None
    assert decide("auto", tmp_path), "nothing is discarded before training"
    resume.begin_anew(tmp_path)
    assert decide("auto", tmp_path) is None
    assert f"the run of {path} is discarded; training from the start" in capsys.readouterr().out


def test_a_finished_run_is_not_resumed_and_a_complete_training_is_known(tmp_path: Path) -> None:
    path = write(tmp_path, Position(step=36, total_steps=36, complete=True))
    assert decide("auto", tmp_path) == ResumePoint(path, complete=True)
    files.mark(tmp_path, files.FINISHED, "")
    assert decide("auto", tmp_path) is None


def test_a_complete_training_is_not_complete_with_more_steps(tmp_path: Path) -> None:
    path = write(tmp_path, Position(step=36, total_steps=36, complete=True))
    assert decide(str(path), tmp_path, run(max_steps=72)) == ResumePoint(path, complete=False)


def test_free_options_may_differ(tmp_path: Path) -> None:
    """The product of batch size, accumulation and ranks stays the same."""
    write(tmp_path)
    assert decide("auto", tmp_path, run(log_every=7))
    assert decide("auto", tmp_path, run(world_size=4, batch_size=4))
    refused = refusal("auto", tmp_path, run(world_size=4))
    assert "global batch was 16 and is 32 now" in refused.problem


def test_some_options_may_differ_with_a_path(tmp_path: Path) -> None:
    path = write(tmp_path)
    changed = run(max_steps=6)
    refused = refusal("auto", tmp_path, changed)
    assert "step 3 of 36" in refused.problem and "max_steps was -1 and is 6 now" in refused.problem
    for advice in (f"--resume {path} ", "--resume never", "--output_dir"):
        assert advice in refused.hint
    assert decide(str(path), tmp_path, changed).path == path


@pytest.mark.parametrize("changed", [{"lr": 0.2}, {"seed": 1}], ids=str)
def test_other_options_may_not_differ(changed: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path)
    (name,) = changed
    identity = run(**changed, clip=2.0)
    by_itself = refusal("auto", tmp_path, identity)
    assert f"{name} was" in by_itself.problem and "clip" not in by_itself.problem
    assert str(path) not in by_itself.hint, "naming the path would not help"
    by_path = refusal(str(path), tmp_path, identity)
    assert f"{name} was" in by_path.problem and "--resume never" in by_path.hint


def test_an_option_missing_in_a_checkpoint_was_at_its_default(tmp_path: Path) -> None:
    """One that the checkpoint lacks was at its default; one that no longer exists is ignored."""
    options = {name: value for name, value in run().options.items() if name not in ("clip", "seed")}
    path = write(tmp_path, options={**options, "gone": 7})
    assert decide("auto", tmp_path)
    assert "clip was 1.0 and is 0.1 now" in refusal("auto", tmp_path, run(clip=0.1)).problem
    assert "seed was 0 and is 1 now" in refusal(str(path), tmp_path, run(seed=1)).problem


def test_a_file_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    notes = tmp_path / "notes.ckpt"
    torch.save({"callbacks": {}}, notes)
    for wanted, problem in {
        "nowhere.ckpt": "there is no such file",
        str(notes): "is not a checkpoint",
        str(tmp_path): "is not a checkpoint",
    }.items():
        found = refusal(wanted, tmp_path).problem
        assert wanted in found and problem in found


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_checkpoint_of_another_version_is_an_error(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = asdict(Position())
    values.pop("step") if change == "fewer" else values.update(gone=1)
    monkeypatch.setattr(files, "asdict", lambda _: values)
    path = write(tmp_path)
    for wanted in ("auto", str(path)):
        refused = refusal(wanted, tmp_path)
        assert str(path) in refused.problem and "--resume never" in refused.hint


def test_an_unfinished_run_is_not_replaced(tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    path = write(other)
    assert decide(str(path), mine)
    write(mine)
    refused = refusal(str(path), mine)
    assert str(mine) in refused.problem and "--resume auto" in refused.hint
    files.mark(mine, files.FINISHED, "")
    assert decide(str(path), mine)


def test_a_training_that_ends_before_the_checkpoint_is_an_error() -> None:
    position = Position(step=7, epoch=3)
    with pytest.raises(UserError, match="--max_steps to 7"):
        resume.check_length(position, 6)
    resume.check_length(position, 7)
    resume.check_length(position, -1)
