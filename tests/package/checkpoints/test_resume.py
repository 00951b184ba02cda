"""Which checkpoint a run resumes from is a function of the folder, what is wanted, and the run's
identity.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning.checkpoints import files, resume
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.resume import ResumeDecision, RunIdentity
from smlightning.errors import UserError
from smlightning.options import Option

DECLARED = {
    "lr": Option(float, 0.1, "", "optimizer", "Model"),
    "seed": Option(int, 0, "", "data", "Data"),
    "max_steps": Option(int, -1, "", "path", "Training"),
    "clip": Option(float, 1.0, "", "path", "Training"),
    "log_every": Option(int, 50, "", "free", "Training"),
    "batch_size": Option(int, 8, "", "free", "Data"),
}
DEFAULTS = {name: option.default for name, option in DECLARED.items()}


def run(world_size: int = 2, **options: Any) -> RunIdentity:
    return RunIdentity.of({**DEFAULTS, **options}, DECLARED, world_size)


def write(directory: Path, at: Position | None = None, **stored: Any) -> Path:
    """A checkpoint of a run with default options, but for what is `stored`."""
    at = at or Position(step=3, total_steps=36)
    identity = run()
    mine = {
        "options": dict(identity.options),
        "global_batch": identity.global_batch,
        "position": at.to_dict(),
        **stored,
    }
    return files.write(directory, at.step, {"callbacks": {"Checkpoints": mine}})


def decide(wanted: str, directory: Path, identity: RunIdentity | None = None) -> ResumeDecision:
    return resume.decide(wanted, directory, identity or run(), DECLARED, "Checkpoints")


def refusal(wanted: str, directory: Path, identity: RunIdentity | None = None) -> UserError:
    with pytest.raises(UserError) as refused:
        decide(wanted, directory, identity)
    return refused.value


def test_the_newest_is_chosen(tmp_path: Path) -> None:
    assert decide("auto", tmp_path) == ResumeDecision()
    write(tmp_path)
    path = write(tmp_path, Position(step=6, total_steps=36))
    resume_point = decide("auto", tmp_path).resume_point
    assert (
        resume_point
        and resume_point.path == path
        and resume_point.checksum in path.name
        and not resume_point.complete
    )
    assert decide("never", tmp_path) == ResumeDecision()


def test_the_other_ranks_hear_all_of_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    for decision in (decide("auto", tmp_path), decide("never", tmp_path)):
        assert ResumeDecision.from_json(decision.to_json()) == decision
    assert str(path) in decide("auto", tmp_path).message


def test_a_finished_run_is_not_resumed_and_a_complete_training_is_known(tmp_path: Path) -> None:
    write(tmp_path, Position(step=36, total_steps=36).finished())
    resume_point = decide("auto", tmp_path).resume_point
    assert resume_point and resume_point.complete
    files.mark_finished(tmp_path)
    decision = decide("auto", tmp_path)
    assert decision.resume_point is None and decision.message


def test_a_complete_training_is_not_so_for_more_steps(tmp_path: Path) -> None:
    path = write(tmp_path, Position(step=36, total_steps=36).finished())
    resume_point = decide(str(path), tmp_path, run(max_steps=72)).resume_point
    assert resume_point and not resume_point.complete


def test_options_that_may_differ_freely(tmp_path: Path) -> None:
    """And the product of batch size, accumulation and ranks stays the same."""
    write(tmp_path)
    assert decide("auto", tmp_path, run(log_every=7)).resume_point
    assert decide("auto", tmp_path, run(world_size=4, batch_size=4)).resume_point
    refused = refusal("auto", tmp_path, run(world_size=4))
    assert "global batch was 16 and is 32 now" in refused.problem


def test_options_that_may_differ_by_path(tmp_path: Path) -> None:
    path = write(tmp_path)
    changed = run(max_steps=6)
    refused = refusal("auto", tmp_path, changed)
    assert "step 3 of 36" in refused.problem and "max_steps was -1 and is 6 now" in refused.problem
    for advice in (f"--resume {path} ", "--resume never", "--output_dir"):
        assert advice in refused.cure
    resume_point = decide(str(path), tmp_path, changed).resume_point
    assert resume_point and resume_point.path == path


@pytest.mark.parametrize("changed", [{"lr": 0.2}, {"seed": 1}], ids=str)
def test_options_that_may_not_differ(changed: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path)
    (name,) = changed
    identity = run(**changed, clip=2.0)
    by_itself = refusal("auto", tmp_path, identity)
    assert f"{name} was" in by_itself.problem and "clip" not in by_itself.problem
    assert str(path) not in by_itself.cure, "naming the path would not help"
    by_path = refusal(str(path), tmp_path, identity)
    assert f"{name} was" in by_path.problem and "--resume never" in by_path.cure


def test_many_differences_are_counted(tmp_path: Path) -> None:
    options = {f"option{number}": 0 for number in range(6)}
    write(tmp_path, options=options)
    refused = refusal("auto", tmp_path, RunIdentity({name: 1 for name in options}, 16))
    assert refused.problem.count(" was ") == resume.SHOWN and "and 3 more" in refused.problem


def test_options_that_came_or_went_since_a_checkpoint(tmp_path: Path) -> None:
    """One that the checkpoint lacks was at its default; one that no longer exists is ignored."""
    options = {name: value for name, value in run().options.items() if name not in ("clip", "seed")}
    path = write(tmp_path, options={**options, "gone": 7})
    assert decide("auto", tmp_path).resume_point
    assert "clip was 1.0 and is 0.1 now" in refusal("auto", tmp_path, run(clip=0.1)).problem
    assert "seed was 0 and is 1 now" in refusal(str(path), tmp_path, run(seed=1)).problem


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    assert "nowhere.ckpt" in refusal("nowhere.ckpt", tmp_path).problem
    notes = tmp_path / "notes.ckpt"
    notes.write_text("not a checkpoint")
    assert str(notes) in refusal(str(notes), tmp_path).problem
    torch.save({"callbacks": {}}, notes)
    assert str(notes) in refusal(str(notes), tmp_path).problem


def test_a_damaged_one_that_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in refusal(str(path), tmp_path).problem


def test_one_of_an_older_format(tmp_path: Path) -> None:
    position = Position().to_dict()
    del position["epoch_trained"]
    path = write(tmp_path, position=position)
    for wanted in ("auto", str(path)):
        refused = refusal(wanted, tmp_path)
        assert str(path) in refused.problem and "--resume never" in refused.cure


def test_a_run_of_this_folder_is_not_replaced_by_anothers(tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    path = write(other)
    assert decide(str(path), mine).resume_point
    write(mine)
    refused = refusal(str(path), mine)
    assert str(mine) in refused.problem and "--resume auto" in refused.cure
    files.mark_finished(mine)
    assert decide(str(path), mine).resume_point


def test_data_that_cannot_start_within_an_epoch() -> None:
    within = resume.data_start(epoch=1, batch=3, batches_per_epoch=8)
    assert "inexact" in within and "5 batches" in within and "epoch 2" in within
    assert "inexact" in resume.data_start(epoch=0, batch=3, batches_per_epoch=0)
    at_start = resume.data_start(epoch=1, batch=0, batches_per_epoch=8)
    assert "inexact" not in at_start and "epoch 2" in at_start


@pytest.mark.parametrize(
    ("epochs", "steps", "named"), [(2, -1, "epochs"), (3, 6, "max_steps"), (-1, 6, "max_steps")]
)
def test_a_training_that_ends_before_the_checkpoint(epochs: int, steps: int, named: str) -> None:
    position = Position(step=7, epoch=3)
    with pytest.raises(UserError) as refusal:
        resume.refuse_shorter_training(position, epochs, steps)
    assert f"--{named} " in refusal.value.cure
    resume.refuse_shorter_training(position, 3, 7)
    resume.refuse_shorter_training(position, -1, -1)


def test_another_architecture() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
    module.strict_loading = True  # type: ignore[assignment]  # as a LightningModule has it
    wider = torch.nn.Sequential(torch.nn.Linear(1, 7), torch.nn.Linear(7, 1), torch.nn.Linear(1, 1))
    resume.refuse_another_architecture(module, module.state_dict())
    with pytest.raises(UserError) as refused:
        resume.refuse_another_architecture(module, wider.state_dict())
    assert "0.weight: (7, 1) there, (4, 1) here" in refused.value.problem
    assert "and 2 more" in refused.value.problem
    module.strict_loading = False  # type: ignore[assignment]
    resume.refuse_another_architecture(module, wider.state_dict())
