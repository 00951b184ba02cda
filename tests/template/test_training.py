"""Training as a person starts it: real processes, two ranks, races, kills, no network, no space."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked
from projects import Project, bake, need, weights
from smlightning.testing.processes import free_port

SMALL = ["--epochs", "2", "--lr", "0.01", "--log_every", "5"]


WATCH = """
import atexit, hashlib, json, os
def watch():
    import pytorch_lightning as pl
    before = pl.Trainer.test
    def test(self, model, *args, **kwargs):
        result = before(self, model, *args, **kwargs)
        weights = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
        metrics = {k: float(v) for k, v in self.callback_metrics.items()}
        seen = {"metrics": metrics, "weights": hashlib.sha256(weights).hexdigest()}
        open(f"watch/rank{self.global_rank}.json", "w").write(json.dumps(seen))
        return result
    pl.Trainer.test = test
if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
    watch()
"""


@pytest.mark.long
def test_two_ranks_under_torchrun(tmp_path: Path, words: Path) -> None:
    """One prepare_data, one writer, the same metrics and weights on both ranks, none left behind.

    That they are those of one process is shown by test_rehearsal.py's launchers.
    """
    made = bake(tmp_path)
    # Each rank writes down what it saw, from outside: src/ knows nothing of it.
    (made.path / "watch").mkdir()
    (made.path / "watch" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    launcher = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = ["src/train.py", "--dataset", str(words), *SMALL, "--batch_size", "16"]
    environment = {"PYTHONPATH": str(made.path / "watch")}
    lines = made.run(*launcher, *command, **environment).stdout.splitlines()
    assert len([line for line in lines if line.startswith("prepare_data:")]) == 1
    (accuracy,) = [line for line in lines if re.fullmatch(r"test/accuracy [01]\.\d{4}", line)]
    assert float(accuracy.split()[1]) > 0.9
    ranks = [(made.path / "watch" / f"rank{rank}.json").read_text() for rank in range(2)]
    assert ranks[0] == ranks[1]
    events = list((made.path / "outputs" / "tensorboard").glob("events*"))
    assert 1 <= len(events) <= 2  # of rank 0: one for fit, one for test
    assert not running(made), "a process was left behind"


def two_ranks(
    project: Project, log: Path, *options: str, **environment: str
) -> tuple[list[int], list[str]]:
    """Statuses and output of two ranks of train.py in the project's folder, forked."""
    code = f"""
import os, sys
os.chdir({str(project.path)!r})
import train
from smlightning import entry
sys.exit(entry.main(train.train, train.Options, None))
"""
    shared = project.environment(
        project.path / "src",
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        **environment,
    )
    log.mkdir()
    ranks = [
        forked.start(code, log / str(i), {**shared, "RANK": str(i), "LOCAL_RANK": str(i)}, *options)
        for i in range(2)
    ]
    statuses, said = forked.wait_for_all(ranks, 200)
    return list(statuses), said


ORDINARY = """

import os

from torch.utils.data import DataLoader


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)


def train_dataloader(self):
    rows = range(len(self.splits["train"]))
    dataset = self.dataset("train")

    def collate(chosen):
        with open(f"seen/{self.trainer.current_epoch}-{self.trainer.global_rank}", "a") as file:
            file.write("".join(f"{row} " for row in chosen))
        return dataset[batches.Share(chosen, len(chosen), 1 / len(chosen))]

    if "STREAM" in os.environ:
        return DataLoader(Stream(rows), self.batch_size, collate_fn=collate)
    return DataLoader(rows, self.batch_size, shuffle=True, collate_fn=collate)


Data.train_dataloader = train_dataloader
"""


def test_an_ordinary_loader_is_divided_and_one_that_repeats_is_refused(
    tmp_path: Path, words: Path
) -> None:
    """Loaders that know nothing of ranks: Lightning can give one of a list a sampler, and one of
    a stream none.
    """
    made = bake(tmp_path)
    with (made.path / "src" / "data.py").open("a", encoding="utf-8") as file:
        file.write(ORDINARY)
    (made.path / "seen").mkdir()
    command = ["--dataset", str(words), "--epochs", "2", "--batch_size", "16", "--log_every", "1"]
    statuses, said = two_ranks(made, tmp_path / "divided", *command, "--output_dir", "divided")
    assert statuses == [0, 0], said
    epochs = [
        [made.read(f"seen/{epoch}-{rank}").split() for rank in range(2)] for epoch in range(2)
    ]
    for first, second in epochs:
        assert len(first) == len(second) > 100
        assert sorted(map(int, first + second)) == list(range(2 * len(first))), "each sample once"
    assert epochs[0] != epochs[1]

    statuses, said = two_ranks(
        made, tmp_path / "repeated", *command, "--output_dir", "repeated", STREAM="1"
    )
    assert statuses == [1, 1]
    assert re.search(r"^error: Ranks 0, 1 of 2 .*DataLoader", said[0], re.M)
    assert "step=1 " in said[0] and "step=2 " not in said[0], "before the second step"


def running(project: Project) -> list[str]:
    """Command lines of the processes whose working directory is the project."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if (process / "cwd").resolve() == project.path:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


PREPARE = """
import data
from smlightning.data import store
made = data.Data({path!r})
assert not made.path.exists() or store.is_complete(made.path), 'half a copy'
made.prepare_data()
"""


def prepare(project: Project, words: Path, log: Path) -> forked.Rank:
    """A process that prepares data, in the project's folder."""
    environment = project.environment(project.path / "src")
    code = f"import os; os.chdir({str(project.path)!r})\n" + PREPARE.format(path=str(words))
    return forked.start(code, log, environment)


def is_prepared(project: Project, words: Path) -> bool:
    """Whether the data is there; it must not be there incomplete."""
    code = (
        "import sys; sys.path.insert(0, 'src'); import data; from smlightning.data import store\n"
        f"made = data.Data({str(words)!r}); there = made.path.exists()\n"
        "assert not there or store.is_complete(made.path), 'half a copy'; print(there)"
    )
    return project.run("python", "-c", code).stdout.strip() == "True"


def test_processes_that_race_build_one_copy(tmp_path: Path, words: Path) -> None:
    made = bake(tmp_path)
    racing = [prepare(made, words, tmp_path / f"log{i}") for i in range(3)]
    statuses, out = forked.wait_for_all(racing, 120)
    assert statuses == (0, 0, 0), out
    assert sum("prepare_data:" in stdout for stdout in out) == 1
    assert is_prepared(made, words)


def test_a_killed_process_leaves_a_good_copy_or_none(tmp_path: Path) -> None:
    """Killed at a moment of the building itself: as soon as the folder it builds in is there, and
    later.

    Each process first asserts that what the one before it left is good or not there.
    """
    made = bake(tmp_path)
    big = tmp_path / "big.csv"
    big.write_text(
        "text,label\n" + "\n".join(f"some words and number {i},{i % 5}" for i in range(600_000))
    )
    killed = 0
    place = made.path / "prepared"
    for after in (0.0, 0.2, 0.4):
        for left in place.glob(".big*"):
            shutil.rmtree(left)
        process = prepare(made, big, tmp_path / f"log{after}")
        while process.process.is_alive() and not list(place.glob(".big*")):
            time.sleep(0.005)
        time.sleep(after)
        process.process.kill()
        status, said = process.wait(60)
        assert status <= 0, said
        killed += status < 0 and bool(list(place.glob(".big*")))
    assert killed >= 1, "none was killed while it built: nothing was tested"
    status, said = prepare(made, big, tmp_path / "log").wait(120)
    assert status == 0, said
    assert is_prepared(made, big)
    assert not list(place.glob(".*")), "what a killed process left is still there"


def test_a_full_disk_is_one_sentence(tmp_path: Path, words: Path) -> None:
    need(root=True)
    made = bake(tmp_path)
    disk = made.path / "prepared"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=True)
    try:
        found = made.run("python", "src/train.py", "--dataset", str(words), check=False)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert found.returncode == 1
    assert "No space left on device" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("option", [["--dataset", "nowhere"], ["--model_name", "no/where"]])
def test_a_name_that_is_nowhere_is_one_sentence(option: list[str], project: Project) -> None:
    started = time.perf_counter()
    found = project.run(
        "python", "src/train.py", *option, check=False, HF_ENDPOINT="https://no-such-host.invalid"
    )
    assert found.returncode == 1
    assert re.search(r"^error: .*not in the cache, and no network.*", found.stderr, re.M), (
        found.stderr
    )
    assert "Traceback" not in found.stderr
    assert time.perf_counter() - started < 60, "the hub's client went on retrying"


def test_a_mistake_is_quick(project: Project) -> None:
    """The contract says 0.3 s and 1 s on a quiet machine; this limit, of processor time, only
    sees torch's import.
    """
    resource = pytest.importorskip("resource", reason="POSIX only")
    for arguments, status in ((["--help"], 0), (["--epoch", "3"], 2), (["--lr", "abc"], 2)):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        found = project.run("python", "src/train.py", *arguments, check=False)
        assert found.returncode == status
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1.5, arguments
        assert len(found.stderr.splitlines()) == (1 if status else 0)


def test_a_terminal_gets_a_live_bar_and_a_log_does_not(tmp_path: Path, words: Path) -> None:
    import pexpect

    made = bake(tmp_path)
    command = ["src/train.py", "--dataset", str(words), *SMALL, "--batch_size", "16"]
    child = pexpect.spawn(
        sys.executable,
        command,
        cwd=str(made.path),
        encoding="utf-8",
        timeout=120,
        dimensions=(30, 140),
        env={**os.environ, "TERM": "xterm"},
    )
    child.expect("Epoch 0/")
    child.expect(r"train/loss=[0-9.]+")
    child.expect(r"val/accuracy=[0-9.]+")
    child.expect(r"test/accuracy [01]\.[0-9]{4}")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    shutil.rmtree(made.path / "prepared")
    programs = made.path / "programs"  # Lightning looks for Slurm's srun
    programs.mkdir()
    (programs / "srun").write_text("#!/bin/sh\n", encoding="utf-8")
    (programs / "srun").chmod(0o755)
    found = made.run("python", *command, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    assert not found.stderr, "a warning that nobody can act on"
    plain = found.stdout
    assert "\x1b" not in plain and "\r" not in plain
    assert re.search(
        r"^step=5 epoch=1 train/loss=[0-9.]+ lr=[0-9.e-]+ samples_per_second=[0-9.]+ "
        r"data_wait=[0-9.e-]+ host_gib=[0-9.]+$",
        plain,
        re.M,
    )


COMPILER = """
import torch
compile = torch.nn.Module.compile
def traced(self, *arguments, **options):
    print("compiled")
    return compile(self, *arguments, **{**options, "backend": "aot_eager"})
torch.nn.Module.compile = traced
"""


@pytest.mark.long
def test_compiled(project: Project, words: Path, tmp_path: Path) -> None:
    """The inner network is compiled; logging, saving and testing go on as before.

    Graphs are traced as ever, and run by torch's operators: Inductor's C++ takes minutes, and
    `make gpu` compiles with it.
    """
    (tmp_path / "sitecustomize.py").write_text(COMPILER, encoding="utf-8")
    rows = [line.split(",") for line in words.read_text(encoding="utf-8").splitlines()]
    alike = tmp_path / "alike.csv"  # a graph is made for each length: all words have the same
    rows[1:] = [[(8 * text)[:8], label] for text, label in rows[1:]]
    alike.write_text("\n".join(map(",".join, rows)), encoding="utf-8")
    options = ["--dataset", str(alike), "--epochs", "1", "--batch_size", "30", "--compile", "True"]
    command = ["python", "src/train.py", *options, "--output_dir", "compiled"]
    lines = project.run(*command, PYTHONPATH=str(tmp_path)).stdout.splitlines()
    assert "compiled" in lines
    assert re.fullmatch(r"test/accuracy [01]\.\d{4}", lines[-1])
    assert weights(project.path / "compiled")
