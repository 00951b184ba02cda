"""Rehearsals of the generated project, end to end: every launcher, faults, and nothing left behind."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
from conftest import Project, need

TMP = Path(tempfile.gettempdir())


def rehearse(project: Project, folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON report of `python -m rehearsal`, with its exit status and output."""
    path = folder / f"report-{time.monotonic_ns()}.json"
    line = ["python", "-m", "rehearsal", "--json", str(path), *arguments]
    ended = project.run(*line, check=False, FORCE_COLOR="1", **environment)  # in colour, as a notebook has it
    output = ended.stdout[-8000:] + ended.stderr[-4000:]
    assert path.exists(), output
    return {**json.loads(path.read_text()), "exit_status": ended.returncode, "output": output}


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in report["checks"]}


def options(words: Path, world_size: int, epochs: int = 2) -> list[str]:
    """A short run whose global batch is 48, however many ranks share it."""
    given = {"dataset": words, "epochs": epochs, "batch_size": 48 // world_size, "log_every": 5}
    return ["--", *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


@pytest.fixture(scope="module")
def exact(project: Project, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The project's own src/ without dropout, whose draws differ by rank: what remains has to be equal."""
    folder = tmp_path_factory.mktemp("exact") / "src"
    shutil.copytree(project.path / "src", folder)
    text = (folder / "model.py").read_text()
    assert "dropout: float = 0.3" in text
    (folder / "model.py").write_text(text.replace("dropout: float = 0.3", "dropout: float = 0.0"))
    return ["--source-dir", str(folder)]


@pytest.fixture(scope="module")
def alone(
    project: Project,
    words: Path,
    exact: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    without_sdk: dict[str, str],
) -> dict[str, Any]:
    """One host, one process, no launcher, and nothing installed but what `make rehearse` installs."""
    command = [*exact, "--hosts", "1", "--distribution", "none", *options(words, 1)]
    return rehearse(project, tmp_path_factory.mktemp("alone"), *command, **without_sdk)


def test_none_on_one_host(alone: dict[str, Any]) -> None:
    assert alone["exit_status"] == 0 and alone["ok"], alone["output"]
    assert "\x1b" not in alone["output"] and "Training Env" not in alone["output"], "a spinner, colours or a listing"
    assert alone["versions"]["torch"] in alone["output"] and "the job's image has torch" in alone["output"]


@pytest.mark.parametrize(
    "hosts, processes, distribution",
    [
        (2, 2, "torch_distributed"),
        (2, 2, "smddp"),
        (3, 1, "pytorchddp"),
    ],
)
def test_launchers(
    hosts: int,
    processes: int,
    distribution: str,
    project: Project,
    words: Path,
    tmp_path: Path,
    exact: list[str],
    alone: dict[str, Any],
) -> None:
    """Every check passes, all ranks end with the same weights, and test as one process with the same global batch."""
    command = ["--hosts", str(hosts), "--processes", str(processes), "--distribution", distribution]
    report = rehearse(project, tmp_path, *exact, *command, *options(words, hosts * processes))
    assert report["exit_status"] == 0 and report["ok"], report["output"]
    assert set(verdicts(report).values()) == {"passed"}
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(hosts * processes))
    assert len({rank["weights"] for rank in ranks}) == 1
    for name, value in alone["ranks"][0]["metrics"].items():
        assert ranks[0]["metrics"][name] == pytest.approx(value, abs=1e-4), name
    assert ("SMDDP" in report["stubs"]) == (distribution == "smddp")
    assert not report["mpirun"] and report["launcher"] in report["output"]
    assert ("without mpirun (several hosts would need an sshd on each)" in report["launcher"]) == (
        "ddp" in distribution
    )


DRIFT = """
Model.on_train_batch_end = lambda self, *_: [p.data.mul_(1 + self.global_rank / 100) for p in self.parameters()]
"""


def test_ranks_that_drift_apart_are_found_though_all_test_the_best_weights_of_one(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    shutil.copytree(project.path / "src", tmp_path / "src")
    with (tmp_path / "src" / "model.py").open("a", encoding="utf-8") as file:
        file.write(DRIFT)
    command = ["--source-dir", str(tmp_path / "src"), "--hosts", "1", "--processes", "2"]
    command += ["--distribution", "torch_distributed", "--", "--dataset", str(words), "--max_steps", "4"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    failed = [name for name, verdict in verdicts(report).items() if verdict == "failed"]
    assert failed == ["weights-identical"] and report["exit_status"] == 1, report["output"]


def test_real_mpirun_on_one_host(project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]) -> None:
    """Open MPI from its wheel, nothing of the system; the job is started again after its host is lost."""
    need("unshare")
    command = ["--hosts", "1", "--distribution", "smddp", "--lose-host", "1"]
    command += options(words, 2, epochs=8)  # the loss has to come before training's end
    report = rehearse(project, tmp_path, *command, "--checkpoint_steps", "2", **without_sdk)
    if not report["mpirun"] and "may not mount" in report["launcher"]:
        need(root=True)
    assert report["mpirun"] and report["launcher"] == "mpirun", report["launcher"]
    assert report["exit_status"] == 0 and set(verdicts(report).values()) == {"passed"}, report["output"]
    assert {"resumes-from-checkpoint", "weights-as-undisturbed"} <= verdicts(report).keys()


CHANGED = """
import json, sys
from launch import request
made, change = request.dry_run, json.loads(sys.argv.pop(1))
def changed(job):
    found = made(job)
    assert found["HyperParameters"]["sagemaker_torch_distributed_enabled"] == "true"
    return {**found, "HyperParameters": {**found["HyperParameters"], **change}}
request.dry_run = changed
from rehearsal.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def with_a_channel(project: Project, folder: Path) -> str:
    """The path of a job.toml whose data is a channel."""
    text = project.read("job.toml").replace('# training = "s3://my-bucket/my-data/"', 'training = "s3://words/data/"')
    (folder / "job.toml").write_text(text.replace("# epochs = 10", 'dataset = "training"'), encoding="utf-8")
    return str(folder / "job.toml")


def test_a_changed_flag_of_the_request_fails(project: Project, words: Path, tmp_path: Path) -> None:
    """What the rehearsal plays is the request that `launch` makes, not a copy of its parts; its channel is a folder."""
    command = ["--job", with_a_channel(project, tmp_path), "--channel", f"training={words.parent}", "--hosts", "1"]
    command += ["--processes", "2", "--distribution", "torch_distributed", "--batches", "2"]
    command += ["--json", str(tmp_path / "report.json")]
    change = json.dumps({"sagemaker_torch_distributed_enabled": "false"})
    said = project.run("python", "-c", CHANGED, change, *command, check=False).stdout
    assert "one epoch of at most 2 batches" in said and "steps=2 " in said and "300 texts" in said
    report = json.loads((tmp_path / "report.json").read_text())
    failed = {check["name"]: check["detail"] for check in report["checks"] if check["verdict"] == "failed"}
    assert not report["ok"] and failed["world-size"] == "1 on 1 ranks; expected 2"


CHANNEL = """
import os, sys
os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
import boto3
from moto import mock_aws
with mock_aws():
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket="words")
    s3.create_bucket(Bucket="sagemaker-us-east-1-000000000000")  # moto takes what a dry run would hold back
    s3.upload_file(sys.argv.pop(1), "words", "data/words.csv")
    from rehearsal.__main__ import main
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("source", ["s3", "nowhere"])  # and a folder: above
def test_a_jobs_channel_comes_from_s3(source: str, project: Project, words: Path, tmp_path: Path) -> None:
    command = ["--job", with_a_channel(project, tmp_path), "--hosts", "1", "--distribution", "none", "--batches", "2"]
    line = ["-c", CHANNEL, str(words)] if source == "s3" else ["-m", "rehearsal"]
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    ended = project.run("python", *line, *command, check=False, **nobody)
    if source == "nowhere":
        assert ended.returncode == 2 and "--channel training=DIR" in ended.stderr and "Traceback" not in ended.stderr
        return
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "channel training: 1 objects of s3://words/data/" in ended.stdout
    assert "300 texts" in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    "fault, rank, processes, distribution, words_said",
    [
        ("--fail-rank", 1, 1, "torch_distributed", "rank 1 fails because"),
        ("--kill-rank", 3, 2, "torch_distributed", "without an error message"),
        ("--kill-rank", 0, 2, "pytorchddp", "rank 0 on host 127.0.0.1"),
    ],
)
def test_a_lost_rank_ends_the_job_and_is_named(
    fault: str,
    rank: int,
    processes: int,
    distribution: str,
    words_said: str,
    project: Project,
    words: Path,
    tmp_path: Path,
    without_sdk: dict[str, str],
) -> None:
    command = ["--hosts", "2", "--processes", str(processes), "--distribution", distribution, fault, str(rank)]
    report = rehearse(project, tmp_path, *command, *options(words, 2 * processes), **without_sdk)
    found = verdicts(report)
    assert report["exit_status"] == 1 and 0 not in report["exit_codes"]
    assert found["ends-in-time"] == found["failure-names-cause"] == found["success-or-failure-file"] == "passed", report
    assert words_said in report["failures"][1][:1024]


def state(project: Project) -> set[str]:
    """What a rehearsal must leave as it was: files with their times, temporary files, installed packages."""
    places = (project.path, Path.home(), Path("/opt"), Path("/dev", "shm"), Path("/etc"))
    found = {f"{path} {path.stat().st_mtime_ns}" for place in places for path in _files(place)}
    found |= {str(path) for path in TMP.iterdir() if path.name.startswith(("rehearsal", "ompi", "done."))}
    return found | {f"{package.name}=={package.version}" for package in metadata.distributions()}


def _files(place: Path) -> list[Path]:
    """Files in a folder; all below it if it is the project's."""
    pattern = "**/*" if place.name.startswith("language") else "*"
    return [p for p in place.glob(pattern) if p.is_file() and not p.is_symlink() and p.name != ".bash_history"]


def rehearsed(place: Path) -> list[psutil.Process]:
    """Processes of a rehearsal whose temporary folder is `place`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("REHEARSAL_EVIDENCE", "").startswith(str(place)):
                found.append(process)
    return found


def test_nothing_is_left_behind_and_two_can_run_at_once(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Side by side, on other ports than 7777, which something else listens to: two of 1 × 1, and a refusal."""
    before = state(project)
    own = tmp_path / "temporary files"
    own.mkdir()
    commands = []
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as claim:  # or it is somebody else's: as good
            claim.bind(
                "\0rehearsal-7777"
            )  # a rehearsal that has found the port free, and is about to use it, holds this
            busy.bind(("", 7777))
            busy.listen()
        for i, (hosts, distribution) in enumerate(
            (("1", "torch_distributed"), ("1", "torch_distributed"), ("2", "none"))
        ):
            line = [sys.executable, "-m", "rehearsal", "--hosts", hosts, "--processes", "1"]
            line += ["--distribution", distribution, "--json", str(tmp_path / f"{i}.json"), *options(words, 1)]
            env = {**os.environ, "TMPDIR": str(own), **without_sdk}
            commands.append(subprocess.Popen(line, cwd=project.path, env=env, stdout=subprocess.DEVNULL))
        assert [command.wait() for command in commands] == [0, 0, 1]
    reports = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert verdicts(reports[2])["success-or-failure-file"] == "passed" and len(reports[2]["failures"]) == 2
    for failure in reports[2]["failures"]:  # without a launcher, two hosts know nothing of each other
        assert failure.startswith('SM_HOSTS=["127.0.0.1","127.0.0.2"] names 2 hosts, but no launcher set RANK')
    assert len({report["port"] for report in reports[:2]} | {7777}) == 3
    assert not list(own.iterdir()) and not rehearsed(own)
    # Other tests run beside this one, and leave nothing either: what is left stays, what is theirs goes.
    left, deadline = state(project) - before, time.monotonic() + 120
    while left and time.monotonic() < deadline:
        time.sleep(1)
        left &= state(project) - before
    assert not left


def test_ctrl_c_ends_everything(project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]) -> None:
    command = ["-m", "rehearsal", "--hosts", "2", "--processes", "1", "--distribution", "torch_distributed"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), **without_sdk}
    child = pexpect.spawn(
        sys.executable,
        [*command, *options(words, 2)],
        cwd=str(project.path),
        env=environment,  # type: ignore[arg-type]
        timeout=90,
        encoding="utf-8",
    )
    child.expect("backend")  # the ranks have met
    child.sendintr()
    time.sleep(0.5)
    child.sendintr()  # as impatient people do, while the first one cleans up
    child.expect("all processes of the rehearsal were ended")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert not rehearsed(tmp_path) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(
    number: signal.Signals, project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "rehearsal", "--hosts", "2", "--processes", "1", "--distribution", "pytorchddp"]
    (own := tmp_path / "own").mkdir()
    environment = {**os.environ, "TMPDIR": str(own), **without_sdk}
    with (tmp_path / "log").open("w") as log:
        line = [*command, *options(words, 2)]
        child = subprocess.Popen(line, cwd=project.path, env=environment, stdout=log, stderr=log)
        while "Invoking user" not in (tmp_path / "log").read_text():
            assert child.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        child.send_signal(number)
        assert child.wait(timeout=20) == 130
    assert not rehearsed(own) and not list(own.iterdir())
