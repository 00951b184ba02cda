"""Training in separate processes: races, kills, no network, a full disk, a terminal."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

import forked
from projects import Project, bake, need, weights

SMALL = ["--epochs", "2", "--lr", "0.01", "--log_every", "5"]


PREPARE = """
import data
made = data.Data({path!r})
if made.path.exists():
    made.setup()  # reads a whole copy
made.prepare_data()
"""


def prepare(project: Project, words: Path, log: Path) -> forked.Rank:
    """A process that prepares data, in the project's folder."""
    environment = project.environment(project.path / "src")
    code = f"import os; os.chdir({str(project.path)!r})\n" + PREPARE.format(path=str(words))
    return forked.start(code, log, environment)


def test_processes_that_race_prepare_data_once(tmp_path: Path, words: Path) -> None:
    made = bake(tmp_path)
    racing = [prepare(made, words, tmp_path / f"log{i}") for i in range(3)]
    statuses, out = forked.wait_for_all(racing, 120)
    assert statuses == (0, 0, 0), out
    assert sum("prepare_data:" in stdout for stdout in out) == 1
    status, said = prepare(made, words, tmp_path / "log").wait(60)
    assert status == 0 and "prepare_data:" not in said, "it is complete"


@pytest.mark.long
def test_a_killed_process_leaves_no_damaged_data(tmp_path: Path) -> None:
    """Killed as soon as the folder of its work exists, and later. Each process verifies first what
    the one before it left.
    """
    made = bake(tmp_path)
    big = tmp_path / "big.csv"
    rows = (f"some words and number {i},{i % 5}" for i in range(300_000))
    big.write_text("text,label\n" + "\n".join(rows))
    killed = 0
    place = made.path / "prepared"
    for after in (0.0, 0.2):
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
    assert killed, "every process had ended before it was killed"
    status, said = prepare(made, big, tmp_path / "log").wait(120)
    assert status == 0, said
    status, said = prepare(made, big, tmp_path / "again").wait(120)
    assert status == 0 and "prepare_data:" not in said, "it is complete"
    assert not list(place.glob(".*")), "what a killed process left is still there"


@pytest.mark.long
def test_a_full_disk_is_one_error(tmp_path: Path, words: Path) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("option", [["--dataset", "nowhere"], ["--model_name", "no/where"]])
def test_an_unknown_name_without_network_is_one_error(option: list[str], project: Project) -> None:
    """The hub's client would retry for half a minute, and say something else."""
    found = project.run(
        "python", "src/train.py", *option, check=False, HF_ENDPOINT="https://no-such-host.invalid"
    )
    assert found.returncode == 1
    assert re.search(r"^error: .*not in the cache", found.stderr, re.M), found.stderr
    assert "Traceback" not in found.stderr


def test_a_terminal_gets_a_live_bar_and_a_log_does_not(tmp_path: Path, words: Path) -> None:
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
def test_a_compiled_network_is_trained_and_saved(
    project: Project, words: Path, tmp_path: Path
) -> None:
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
