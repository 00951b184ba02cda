"""A run that ends anywhere and is gone on with ends as if nothing had happened; what is damaged is found out.

Runs on several ranks, killed and stopped from outside, are tested with the template that made this project.
"""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl
import torch

import model
import train
from runtime import batches, checkpoint_files, checkpoints, prepared, ranks, report, resume, watchdog
from runtime.report import UserError


class Small(model.ByteCNN):
    def __init__(self, classes: int, buckets: int = 263, **config: Any) -> None:
        super().__init__(classes, buckets=buckets, **config)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures, which test_train.py looks at, and large checkpoints take most of a short run's time."""
    monkeypatch.setattr(report, "save_figure", lambda figure, path: report.pyplot().close(figure))
    monkeypatch.setattr(model, "ByteCNN", Small)


class Crash(Exception):
    """What ends a run here."""


def run(words: str, **options: Any) -> None:
    train.train(**{"dataset": words, "epochs": 3, "batch_size": 16, "checkpoint_steps": 3, "log_every": 5, **options})


def outcome(output: str = "outputs") -> dict[str, Any]:
    path = checkpoint_files.newest(Path(output) / "checkpoints")
    assert path
    return torch.load(path, weights_only=True)


def best(output: str = "outputs") -> dict[str, Any]:
    """The best weights that the newest checkpoint names."""
    path = checkpoint_files.newest(Path(output) / "checkpoints")
    file = path and checkpoint_files.best_file(path)
    assert file
    return torch.load(file, weights_only=True)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def crash(patch: pytest.MonkeyPatch, hook: str, at: int) -> None:
    """End the run when it gets to `hook` for the `at`-th time, after what the hook does."""
    calls = 0
    original = getattr(checkpoints.Checkpoints, hook)

    def crashing(self: checkpoints.Checkpoints, *args: Any, **more: Any) -> None:
        nonlocal calls
        calls += 1
        original(self, *args, **more)
        self.disk.finish()  # a checkpoint that comes while another is being written is left out
        if calls == at:
            raise Crash

    patch.setattr(checkpoints.Checkpoints, hook, crashing)


# Of 240 words 192 train, in 12 global batches of 16 an epoch; validation has 2 batches and the test 2.
MOMENTS = [
    ("on_train_batch_end", 2),  # before the first checkpoint
    ("on_train_batch_end", 8),
    ("on_train_batch_end", 12),  # training of the first epoch is complete, validation is not begun
    ("on_train_batch_end", 25),
    ("on_validation_batch_end", 1),
    ("on_train_epoch_end", 2),
    ("on_train_end", 1),
    ("on_test_batch_end", 1),
    ("finish", 1),
]


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 2, "batch_size": 8, "seed": 2**32 - 1},
        {},
        {"max_steps": 31},
        {"num_workers": 1},
    ],
)
def test_going_on_is_as_if_nothing_had_happened(
    words: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(words, output_dir="alone", **options)
    alone = outcome("alone")
    chosen = {"max_steps": slice(3, 8, 3), "num_workers": slice(1, 3), "seed": slice(1, 5)}  # the rest: no options
    moments = MOMENTS[next((chosen[name] for name in options if name in chosen), slice(None))]
    for number, (hook, at) in enumerate(moments):
        output = f"interrupted{number}"
        with pytest.MonkeyPatch.context() as patch:
            crash(patch, hook, at * options.get("accumulate_grad_batches", 1) if hook == "on_train_batch_end" else at)
            with pytest.raises(Crash):
                run(words, output_dir=output, **options)
        if hook != "finish":
            expected = checkpoint_files.newest(Path(output, "checkpoints"))
            capsys.readouterr()
            run(words, output_dir=output, **options)
            said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("resume: ")]
            assert len(said) == bool(expected) and all(f"from {expected}, " in line for line in said), (hook, at)
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert same(alone[part], outcome(output)[part]), (part, hook, at)
        for part in ("best_score", "position"):
            mine = [state["callbacks"]["Checkpoints"][part] for state in (alone, outcome(output))]
            assert same(*mine), (part, hook, at)
        assert same(best("alone"), best(output)), (hook, at)
        rows = [Path(f, "curves.csv").read_text().splitlines() for f in ("alone", output)]
        timeless = [[line.rpartition(",")[0] for line in lines] for lines in rows]
        assert timeless[0] == timeless[1], (hook, at)


def test_batches_that_ranks_and_accumulation_divide_anew() -> None:
    """From 2 ranks to 1 or 4, in the middle of an epoch: the rest of the samples, each once."""
    lengths = torch.randint(1, 30, (103,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = batches.GlobalBatches(lengths, 16, seed=5)
    whole.set_epoch(1)
    expected = [sorted(rows) for rows, _, _ in whole]
    for world_size, accumulate in ((1, 1), (1, 4), (2, 2), (4, 1), (3, 5)):
        seen: list[list[int]] = [[] for _ in expected[3:]]
        for rank in range(world_size):
            order = batches.GlobalBatches(lengths, 16, rank, world_size, 5, accumulate, start=(1, 3))
            assert len(order) == len(expected) * accumulate
            for i, (rows, real, scale) in enumerate(order):
                seen[i // accumulate].extend(rows[:real])
                size = len(expected[3 + i // accumulate])
                assert scale == pytest.approx(world_size * accumulate / size)
            order.set_epoch(2)
            assert len(list(order)) == len(order)
        assert [sorted(rows) for rows in seen] == expected[3:]


def spoil(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        content[len(content) * 2 // 3] ^= 4
        path.write_bytes(content)
    elif how == "half-renamed":  # the name is there, and the content is that of a write that was cut off
        path.rename(path.with_name(f".{path.name[:6]}.ckpt"))
        path.write_bytes(content[:100])


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(words, epochs=1, output_dir="alone")
    with monkeypatch.context() as patch:
        crash(patch, "on_train_batch_end", 9)
        with pytest.raises(Crash):
            run(words, epochs=1)
    for how in ("truncated", "empty", "flipped", "half-renamed"):
        shutil.copytree("outputs", how)
        (_, newest), (_, before), *_ = checkpoint_files.numbered(Path(how, "checkpoints"))
        spoil(newest, how)
        capsys.readouterr()
        run(words, epochs=1, output_dir=how)
        said = capsys.readouterr()
        assert f"warning: {newest} is damaged" in said.err, how
        assert f"resume: from {before}, step 6 of 12" in said.out, how
        assert same(outcome(how)["state_dict"], outcome("alone")["state_dict"]), how


def test_going_back_to_the_start_is_for_a_person_to_say(words: str) -> None:
    run(words, epochs=1)
    for _, path in checkpoint_files.numbered(Path("outputs/checkpoints")):
        spoil(path, "flipped")
    with pytest.raises(UserError, match=r"All \d checkpoints in outputs/checkpoints are damaged; .* --resume never"):
        run(words, epochs=1)
    run(words, epochs=1, resume="never")


def test_what_is_not_gone_on_with(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash(patch, "on_train_batch_end", 4)
        with pytest.raises(Crash):
            run(words)
    path = checkpoint_files.newest(Path("outputs/checkpoints"))
    with pytest.raises(UserError, match="no such checkpoint; expected auto, never or a file"):
        run(words, resume="nowhere.ckpt")
    with pytest.raises(UserError, match="global batch was 16 and is 8 now"):
        run(words, resume=str(path), batch_size=8)
    Path("notes.ckpt").write_text("not a checkpoint")
    with pytest.raises(UserError, match=r"notes\.ckpt is not a checkpoint of this program"):
        run(words, resume="notes.ckpt")
    capsys.readouterr()
    with pytest.raises(UserError, match=r"lr was 0\.002 and is 0\.001 now; with that the optimizer's state, "):
        run(words, resume=str(path), lr=1e-3)
    with monkeypatch.context() as patch:
        crash(patch, "on_train_batch_end", 4)
        with pytest.raises(Crash):
            run(words, output_dir="unfinished")
    with pytest.raises(UserError, match="unfinished/checkpoints holds an unfinished run of its own"):
        run(words, resume=str(path), output_dir="unfinished")
    capsys.readouterr()
    run(words, resume=str(path), gradient_clip_val=2.0, output_dir="other", max_steps=6)
    assert f"resume: from {path}, step 3 of 36" in capsys.readouterr().out
    with pytest.raises(
        UserError, match=r"run, step 3 of 36, and lr was 0\.002 and is 0.001 now; .* to resume, pass --resume never"
    ):
        run(words, lr=1e-3, gradient_clip_val=2.0)
    with pytest.raises(
        UserError, match=r"and max_steps was -1 and is 6 now; .* to resume with the new ones, --resu"
    ) as refusal:
        run(words, max_steps=6)
    assert f"--resume {path} to" in str(refusal.value)
    changed = Path("changed.csv")
    changed.write_bytes(Path(words).read_bytes())
    with pytest.raises(UserError, match=r"dataset was .*words\.csv' and is 'changed\.csv' now"):
        run(str(changed), resume=str(path))
    run(words, resume="never", lr=1e-3, max_steps=6)
    capsys.readouterr()
    run(words, lr=1e-3, max_steps=6)
    assert "that run is finished; training from the start" in capsys.readouterr().out


def test_options_that_came_or_went_since_a_checkpoint(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the checkpoint lacks was at its default; one that no longer exists is ignored."""
    with monkeypatch.context() as patch:
        crash(patch, "on_train_batch_end", 4)
        with pytest.raises(Crash):
            run(words)
    state = outcome()
    stored = state["callbacks"]["Checkpoints"]["options"]
    assert stored.pop("gradient_clip_val") == 1.0
    assert stored.pop("seed") == 0
    stored["gone"] = 7
    path = checkpoint_files.write(Path("outputs/checkpoints"), 3, state)
    with pytest.raises(
        UserError, match=r"holds an unfinished run, step 3 of 36, and gradient_clip_val was 1\.0 and is 0\.1"
    ):
        run(words, gradient_clip_val=0.1)
    with pytest.raises(
        UserError, match="seed was 0 and is 1 now; with that the optimizer's state, the position in the data"
    ):
        run(words, resume=str(path), seed=1)
    capsys.readouterr()
    run(words, num_workers=0, log_every=7)
    assert f"resume: from {path}, step 3 of 36" in capsys.readouterr().out


def test_data_that_changed_is_not_gone_on_with(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Path(words).read_text(encoding="utf-8").splitlines(keepends=True)
    mine = Path("mine.csv")
    mine.write_text("".join(rows), encoding="utf-8")
    with monkeypatch.context() as patch:
        crash(patch, "on_train_batch_end", 4)
        with pytest.raises(Crash):
            run(str(mine))
    text, _, label = rows[-1].rpartition(",")
    mine.write_text("".join([*rows[:-1], f"{text}x,{label}"]), encoding="utf-8")  # as many rows, and one is another
    with pytest.raises(UserError, match="data has changed since the checkpoint"):
        run(str(mine))
    mine.write_text("".join(rows), encoding="utf-8")  # a new file of the same content is the same data
    run(str(mine))


def test_loading_executes_nothing(words: str, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"callbacks": {"Checkpoints": Payload()}}, "payload.ckpt")
    with pytest.raises(UserError, match="is not a checkpoint of this program"):
        run(words, resume="payload.ckpt")
    assert not (tmp_path / "executed").exists()


def test_the_newest_few_are_kept(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint_files.AsyncCheckpointIO.save_checkpoint

    def waiting(self: checkpoint_files.AsyncCheckpointIO, *args: Any, **options: Any) -> None:
        self.wait = True  # on a busy machine some would be left out
        save(self, *args, **options)

    monkeypatch.setattr(checkpoint_files.AsyncCheckpointIO, "save_checkpoint", waiting)
    run(words, epochs=2)
    names = [path.name for _, path in checkpoint_files.numbered(Path("outputs/checkpoints"))]
    assert len(names) == checkpoint_files.KEEP and "-step000024-" in names[0]
    bests = {checkpoint_files.best_file(Path("outputs/checkpoints", name)) for name in names}
    assert bests == set(Path("outputs/checkpoints").glob("*-best-*.ckpt")), (
        "those that a checkpoint names, and no others"
    )
    assert best().keys() == outcome()["state_dict"].keys()


def test_best_weights_are_written_when_they_change_and_not_again(tmp_path: Path) -> None:
    disk, written = checkpoint_files.AsyncCheckpointIO(tmp_path), []
    for step in range(1, 2 * checkpoint_files.KEEP + 4):
        if step in (1, checkpoint_files.KEEP + 3):
            disk.keep_best({"weight": torch.tensor(float(step))})
        disk.position = {"step": step}
        disk.save_checkpoint({"weight": torch.tensor(0.0)}, "")
        disk.finish()
        written.append(checkpoint_files.best_file(checkpoint_files.numbered(tmp_path)[0][1]))
    assert len(set(written)) == 2 and None not in written
    assert written[checkpoint_files.KEEP + 1] != written[checkpoint_files.KEEP + 2]


def test_a_full_disk_ends_the_run_in_a_sentence(words: str) -> None:
    """The limit of a file's size stands for the disk's end: the same writes fail, and anybody may set it."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    run(words, epochs=1, max_steps=3)
    kept = checkpoint_files.newest(Path("outputs/checkpoints"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(UserError) as refusal:
            checkpoint_files.write(Path("outputs/checkpoints"), 7, {"weights": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "could not be written to outputs/checkpoints" in str(refusal.value)
    assert f"the last good one is {kept}; free some space and start the command again with --resume auto" in str(
        refusal.value
    )
    assert "\n" not in str(refusal.value)
    assert checkpoint_files.newest(Path("outputs/checkpoints")) == kept
    assert not list(Path("outputs/checkpoints").glob(".*.ckpt"))


def test_a_full_disk_at_the_very_end_is_a_sentence(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "atomic_write", full)
    with pytest.raises(UserError, match="model is saved, but not that the run is finished, in outputs/checkpoints"):
        run(words, epochs=1, max_steps=3)


def test_a_full_disk_that_a_logger_wraps_is_a_sentence(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:  # as TensorBoard's, in Lightning 2.6.6
        raise ValueError("you tried to log 0.5") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.loggers.TensorBoardLogger, "log_metrics", full)
    with pytest.raises(UserError, match=r"^OSError: \[Errno 28\] No space left on device; free some space and start"):
        run(words, epochs=1, max_steps=3)
    with pytest.raises(KeyError) as another:
        try:
            full()
        except ValueError:
            raise KeyError("of another kind") from None
    assert not report.sentence(another.value)


def test_time_at_rest_does_not_count_as_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now)
    mine = watchdog.HangWatchdog(60)
    mine.armed = mine.warm = True
    now = 110.0
    with watchdog.pause_watchdog():
        now = 190.0
        assert mine._idle() == 0
    now = 195.0
    assert mine._idle() == 5


def test_training_is_warm_after_a_whole_update_and_a_batch_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog.loop_state, "steps", lambda _: 0)
    mine, trainer = watchdog.HangWatchdog(60), SimpleNamespace(accumulate_grad_batches=3)
    for _ in range(9):
        mine.on_validation_batch_end()  # the validation before training
    warm = []
    for _ in range(4):
        mine.on_train_batch_end(trainer)
        warm.append(mine.warm)
    assert warm == [False, False, False, True]


def test_a_watchdog_that_is_used_again_has_new_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SimpleNamespace(set=lambda *_: None, check=lambda _: False, add=lambda *_: 0, get=lambda _: b"{}")
    monkeypatch.setattr(ranks, "another_store", lambda: store)
    mine = watchdog.HangWatchdog(3.0)
    mine.cluster = replace(mine.cluster, world_size=2)
    mine.setup()
    first = [*mine.threads]
    mine._stop()
    mine.setup()
    for thread in first:
        thread.join(2)
    assert not any(thread.is_alive() for thread in first) and all(thread.is_alive() for thread in mine.threads)
    second = [*mine.threads]
    mine._stop()
    for thread in second:  # or its timer would end the process of the tests
        thread.join(2)


def test_a_hang_is_placed_in_the_owners_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the machinery that it called: what a person changed says more."""
    seen: list[str] = []
    monkeypatch.setattr(ranks, "all_sum", lambda tensor: seen.append(watchdog.HangWatchdog(60)._where()) or tensor)
    assert ranks.any_rank(True)
    call = compile("ranks.sum_over_ranks(ones)", model.__file__, "exec")  # as torchmetrics does for model.py
    exec(call, {"ranks": ranks, "ones": torch.ones(1)})  # noqa: S102
    assert [place.split(":")[0] for place in seen] == ["watchdog.py", "model.py"]


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's answers, whatever filelock makes of them; then what its older versions make of one."""
    fcntl = pytest.importorskip("fcntl", reason="POSIX only")
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
            first = resume.lock(tmp_path / str(number))
            warned = "let no other run write there" in capsys.readouterr().err
            assert first.is_locked != warned, number
            if first.is_locked:  # by a mark; that of another host may outlive its process
                first.release()
                (tmp_path / str(number) / ".lock").write_text("1\nanother-host\n")
                patch.setattr(resume, "LOCK_SECONDS", 0.1)
                with pytest.raises(UserError, match=r"wait for its end \(or remove .*\.lock, if there is none\)"):
                    resume.lock(tmp_path / str(number))
    monkeypatch.setattr(resume.FileLock, "acquire", Mock(side_effect=NotImplementedError))
    resume.lock(tmp_path / "other")
    assert "let no other run write there" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"No file can be locked in .*; set --data_dir to another folder"):
        prepared.prepare(tmp_path / "data", Mock(), "rows")  # another process there might write the same files


def test_two_runs_do_not_write_to_one_folder(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "LOCK_SECONDS", 0.1)
    Path("outputs/checkpoints").mkdir(parents=True)
    hold = "import filelock; x = filelock.FileLock('outputs/checkpoints/.lock'); x.acquire(); print('held', flush=True)"
    command = [sys.executable, "-c", f"{hold}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="Another run is writing to outputs/checkpoints; wait for its end, or name"):
            run(words)
        other.kill()
    run(words, epochs=1, max_steps=3)
