"""Rehearsals of a generated project: launchers, faults, and no process or file left behind."""

import gzip
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pexpect
import pytest

from projects import Project, need
from rehearsals import COMMAND, options, processes_below, rehearse, size, verdicts
from smlightning import ports

TEMPORARY = Path(tempfile.gettempdir())
LEFT_BY_REHEARSALS = ("rehearsal", "ompi", "done.")  # beginnings of names of temporary files


@pytest.fixture(scope="module")
def exact(project: Project, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The project's src/ without dropout, whose random numbers differ by rank."""
    folder = tmp_path_factory.mktemp("exact") / "src"
    shutil.copytree(project.path / "src", folder)
    text = (folder / "model.py").read_text()
    assert "dropout: float = 0.3" in text
    (folder / "model.py").write_text(text.replace("dropout: float = 0.3", "dropout: float = 0.0"))
    return ["--source-dir", str(folder)]


@pytest.fixture(scope="module")
def one_process(
    project: Project,
    words: Path,
    exact: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    without_sdk: dict[str, str],
) -> dict[str, Any]:
    """The report of one process without a launcher, with the packages of `make rehearse` only."""
    command = [*exact, *size(1, 1, "none"), *options(words, 1)]
    return rehearse(project, tmp_path_factory.mktemp("one"), *command, **without_sdk)


def test_one_process_without_a_launcher(one_process: dict[str, Any]) -> None:
    output = one_process["output"]
    assert one_process["exit_status"] == 0 and one_process["ok"], output
    assert "\x1b" not in output, "neither colours nor a spinner without a terminal"
    assert "Training Env" not in output, "not the toolkit's listing of variables"


@pytest.mark.parametrize(
    "hosts, processes, distribution",
    [
        (2, 2, "torch_distributed"),
        (2, 2, "smddp"),
        pytest.param(3, 1, "pytorchddp", marks=pytest.mark.long),
    ],
)
def test_ranks_under_a_launcher_end_as_one_process(
    hosts: int,
    processes: int,
    distribution: str,
    project: Project,
    words: Path,
    tmp_path: Path,
    exact: list[str],
    one_process: dict[str, Any],
) -> None:
    """Every check passes; the metrics are one process's with the same global batch."""
    world_size = hosts * processes
    command = [*exact, *size(hosts, processes, distribution), *options(words, world_size)]
    report = rehearse(project, tmp_path, *command)
    assert report["exit_status"] == 0 and report["ok"], report["output"]
    assert set(verdicts(report).values()) == {"passed"}
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(world_size))
    assert len({rank["weights"] for rank in ranks}) == 1
    for name, value in one_process["ranks"][0]["metrics"].items():
        assert ranks[0]["metrics"][name] == pytest.approx(value, abs=1e-4), name
    assert ("SMDDP" in report["stubs"]) == (distribution == "smddp")
    assert not report["mpirun"] and report["launcher"] in report["output"]
    by_mpirun = "mpirun" in report["launcher"]
    assert by_mpirun == ("ddp" in distribution) == ("sshd" in report["launcher"])
    assert_package_is_each_hosts(ranks)


def assert_package_is_each_hosts(ranks: list[dict[str, Any]]) -> None:
    """Each rank imports the copy next to its train.py, not one that is installed here."""
    for rank in ranks:
        of_host = f"/host-{rank['host'] + 1}/code/smlightning/__init__.py"
        assert rank["package"].endswith(of_host), rank["package"]


@pytest.mark.long
def test_real_mpirun_on_one_host(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Open MPI from its wheel. SIGTERM reaches the ranks in a namespace, and the job restarts."""
    need("unshare")
    command = [*size(1, 2, "pytorchddp"), "--stop-host", "1"]
    command += options(words, 2, epochs=8)  # SIGTERM has to come before the end
    report = rehearse(project, tmp_path, *command, **without_sdk)
    if not report["mpirun"] and "may not mount" in report["launcher"]:
        need(root=True)
    assert report["mpirun"] and report["launcher"] == "mpirun", report["launcher"]
    of_checks = verdicts(report)
    assert report["exit_status"] == 0 and set(of_checks.values()) == {"passed"}, report["output"]
    assert {"resumes-from-checkpoint", "weights-as-undisturbed"} <= of_checks.keys()
    assert_package_is_each_hosts(report["ranks"])


ON_MOTOS_S3 = """
import os, sys
os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
import boto3
from moto import mock_aws
from smlightning.rehearsal import main
with mock_aws():
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket="words")
    s3.upload_file(sys.argv[1], "words", "data/words.csv")
    sys.exit(main(sys.argv[2:]))
"""


def test_a_channel_without_a_folder_gets_a_sample_from_s3(
    project: Project, words: Path, tmp_path: Path
) -> None:
    text = project.read("job.toml")
    text = text.replace("[channels]", '[channels]\ntraining = "s3://words/data/"')
    text = text.replace("[hyperparameters]", '[hyperparameters]\ndataset = "training"')
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    command = [str(words), "--job", str(tmp_path / "job.toml"), *size(1, 1, "none")]
    ended = project.run("python", "-c", ON_MOTOS_S3, *command, "--batches", "2", check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "channel training: 1 objects of s3://words/data/" in ended.stdout
    assert "300 texts" in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    "fault, rank, distribution, cause",
    [
        ("--fail-rank", 1, "torch_distributed", "rank 1 fails because"),
        pytest.param(
            "--kill-rank", 0, "pytorchddp", "rank 0 on host 127.0.0.2", marks=pytest.mark.long
        ),
    ],
)
def test_a_lost_rank_ends_the_job_with_its_cause_and_shows_no_secret(
    fault: str,
    rank: int,
    distribution: str,
    cause: str,
    project: Project,
    words: Path,
    tmp_path: Path,
    without_sdk: dict[str, str],
) -> None:
    (tmp_path / "job.toml").write_text(with_secrets(project), encoding="utf-8")
    command = [*size(2, 1, distribution), fault, str(rank)]
    command += ["--job", str(tmp_path / "job.toml"), "--keep", str(tmp_path / "kept")]
    command += [word for name in SECRETS for word in ("--inherit", name)]
    command += options(words, 2)
    report = rehearse(project, tmp_path, *command, **without_sdk, **dict.fromkeys(SECRETS, VALUE))
    assert report["exit_status"] == 1 and 0 not in report["exit_codes"]
    of_checks = verdicts(report)
    assert of_checks.pop("hosts-succeeded") == "failed"
    names = {"success-or-failure-file", "ends-in-time", "failure-names-cause"}
    passed = {name for name, verdict in of_checks.items() if verdict == "passed"}
    assert passed >= names, (report["exit_codes"], report["checks"])
    assert cause in report["failures"][1][:1024]
    assert set(report["secrets"]) == set(SECRETS)
    assert_nowhere(VALUE, report, tmp_path)


SECRETS = {"WANDB_API_KEY": "team/wandb:key", "DB_PASSWORD": "ssm:/team/db"}
VALUE = "s3cr3t0123456789abcdef"


def with_secrets(project: Project) -> str:
    """job.toml with SECRETS."""
    lines = "".join(f'{variable} = "{name}"\n' for variable, name in SECRETS.items())
    return project.read("job.toml").replace("[secrets]\n", f"[secrets]\n{lines}")


def assert_nowhere(value: str, report: dict[str, Any], folder: Path) -> None:
    """The value is in no request, log, listing of variables, failure, archive or report."""
    assert value not in json.dumps(report)
    files = [path for path in folder.rglob("*") if path.is_file()]
    logs = [path.read_text() for path in files if path.name == "log.txt"]
    assert len(logs) == 2 and all("Training Env:" in text for text in logs)
    assert {"failure", "hyperparameters.json"} <= {path.name for path in files}
    assert not [path for path in files if value.encode() in content(path)]


def content(path: Path) -> bytes:
    """A file's bytes; those of an archive of the code unpacked."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def state(project: Project) -> set[str]:
    """All that a rehearsal must not change: files with times, temporary files, packages."""
    places = (Path.home(), Path("/opt"), Path("/dev", "shm"), Path("/etc"))
    files = [path for place in places for path in place.iterdir()]
    files += [path for path in project.path.rglob("*") if "__pycache__" not in path.parts]
    facts = set()
    for path in files:
        if path.is_file() and not path.is_symlink() and path.name != ".bash_history":
            facts.add(f"{path} {path.stat().st_mtime_ns}")
    facts |= {str(path) for path in TEMPORARY.iterdir() if path.name.startswith(LEFT_BY_REHEARSALS)}
    return facts | {f"{package.name}=={package.version}" for package in metadata.distributions()}


def occupy_port_7777(listener: socket.socket) -> None:
    """Let something listen on SageMaker's port, unless another process of this machine does.

    A rehearsal of another test may have claimed the port, and not bound it yet.
    """
    with ports.claimed([7777]) as port:
        if port == 7777:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
            listener.listen()


def test_two_rehearsals_at_once_leave_nothing_behind(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """They use other ports than 7777, which is in use."""
    before = state(project)
    folder = tmp_path / "temporary files"
    folder.mkdir()
    running = []
    with socket.socket() as listener:
        occupy_port_7777(listener)
        for number in range(2):
            command = [sys.executable, *COMMAND[1:], "--json", str(tmp_path / f"{number}.json")]
            command += [*size(1, 1, "torch_distributed"), *options(words, 1)]
            variables = project.environment(TMPDIR=str(folder), **without_sdk)
            running.append(subprocess.Popen(command, cwd=project.path, env=variables))
        assert [rehearsal.wait() for rehearsal in running] == [0, 0]
    reports = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    assert len({report["port"] for report in reports} | {7777}) == 3
    assert not list(folder.iterdir()) and not processes_below(folder)
    # Other tests that run now leave nothing either, but later.
    left, deadline = state(project) - before, time.monotonic() + 120
    while left and time.monotonic() < deadline:
        time.sleep(1)
        left &= state(project) - before
    assert not left


def test_ctrl_c_ends_everything(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    child = pexpect.spawn(
        sys.executable,
        [*COMMAND[1:], *size(2, 1, "torch_distributed"), *options(words, 2)],
        cwd=str(project.path),
        env=project.environment(TMPDIR=str(tmp_path), **without_sdk),  # type: ignore[arg-type]
        timeout=90,
        encoding="utf-8",
    )
    child.expect("backend")  # the ranks have met
    child.sendintr()
    time.sleep(0.5)
    child.sendintr()  # as impatient people do, while the first one cleans up
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert not processes_below(tmp_path) and not list(tmp_path.iterdir())


def test_sigterm_ends_everything(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    folder, log = tmp_path / "temporary files", tmp_path / "log"
    folder.mkdir()
    with log.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, *COMMAND[1:], *size(2, 1, "pytorchddp"), *options(words, 2)],
            cwd=project.path,
            env=project.environment(TMPDIR=str(folder), **without_sdk),
            stdout=file,
            stderr=file,
        )
        while "Invoking user" not in log.read_text():
            assert child.poll() is None, log.read_text()
            time.sleep(0.1)
        child.terminate()
        assert child.wait(timeout=20) == 130
    assert not processes_below(folder) and not list(folder.iterdir())
