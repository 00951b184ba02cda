"""Rehearsals of a generated project: launchers, faults, and no process or file left behind."""

import gzip
import json
import shutil
import socket
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pexpect
import pytest

from projects import Project, need, wait_until
from rehearsals import COMMAND, options, processes_below, rehearse, size, start, verdicts
from smlightning_sagemaker.rehearsal import ports

TEMPORARY = Path(tempfile.gettempdir())
LEFT_BY_REHEARSALS = ("rehearsal", "ompi", "done.")  # beginnings of names of temporary files

SIZES = {"torch_distributed": (2, 2), "smddp": (2, 1)}  # hosts, processes of each


@pytest.mark.long
@pytest.mark.parametrize("distribution", SIZES)
def test_rehearsals_at_once_end_alike_and_leave_nothing_behind(
    distribution: str, project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """One process, whose data is a channel, and the ranks of a launcher.

    Their global batch is the same. They use other ports than 7777, which is in use.
    """
    exact = without_dropout(project, tmp_path / "exact")
    before = state(exact)
    folder = tmp_path / "temporary files"
    folder.mkdir()
    commands = {"none": one_process_with_a_channel(exact, words, tmp_path)}
    hosts, processes = SIZES[distribution]
    command = [*COMMAND, "--json", str(tmp_path / f"{distribution}.json")]
    command += [*size(hosts, processes, distribution), *options(words, hosts * processes)]
    commands[distribution] = command
    running = []
    with socket.socket() as listener:
        occupy_port_7777(listener)
        for name, command in commands.items():
            variables = {"TMPDIR": str(folder), "FORCE_COLOR": "1"}  # notebooks set the second
            variables |= without_sdk if name in SIZES else {}
            running.append(start(exact, tmp_path / f"{name}.log", *command, **variables))
        statuses = [rehearsal.wait() for rehearsal in running]
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in commands}
    assert statuses == [0, 0], logs
    reports = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in commands}
    assert len({report["port"] for report in reports.values()} | {7777}) == 3
    metrics = assert_one_process_read_the_channel(reports["none"], logs["none"])
    assert_all_checks_pass(reports[distribution], distribution, metrics)
    assert reports[distribution]["launcher"] in logs[distribution]
    assert not list(folder.iterdir()) and not processes_below(folder)
    left = state(exact) - before

    def nothing_is_left() -> bool:
        time.sleep(0.5)  # looking takes processor time
        left.intersection_update(state(exact))
        return not left

    wait_until(nothing_is_left)  # other tests that run now leave nothing either, but later


def without_dropout(project: Project, path: Path) -> Project:
    """A copy of the project without dropout, whose random numbers differ by rank."""
    shutil.copytree(project.path, path)
    text = (path / "src/model.py").read_text()
    assert text.count("dropout: float = 0.3") == 1
    (path / "src/model.py").write_text(text.replace("dropout: float = 0.3", "dropout: float = 0.0"))
    return Project(path)


def one_process_with_a_channel(project: Project, words: Path, folder: Path) -> list[str]:
    """The command of a rehearsal whose job has a channel on S3, and a sample of it here."""
    text = project.read("job.toml")
    assert text.count("[channels]") == 1
    text = text.replace("[channels]", '[channels]\ntraining = "s3://words/data/"')
    (folder / "job.toml").write_text(text, encoding="utf-8")
    sample = folder / "sample"
    sample.mkdir()
    shutil.copy(words, sample)
    command = [*COMMAND, "--job", str(folder / "job.toml"), "--channel", f"training={sample}"]
    command += ["--json", str(folder / "none.json")]
    return [*command, *size(1, 1, "none"), *options("training", 1)]


def assert_one_process_read_the_channel(report: dict[str, Any], log: str) -> dict[str, float]:
    """Returns its metrics."""
    assert report["ok"]
    assert "train 240, validation 30, test 30" in log, log
    assert "\x1b" not in log, "neither colours nor a spinner without a terminal"
    assert "Training Env" not in log, "not the toolkit's listing of variables"
    return report["ranks"][0]["metrics"]


def assert_all_checks_pass(
    report: dict[str, Any], distribution: str, metrics: dict[str, float]
) -> None:
    """Every check passes on all ranks, and the metrics are those of one process."""
    assert report["ok"] and set(verdicts(report).values()) == {"passed"}, report["checks"]
    ranks = report["ranks"]
    hosts, processes = SIZES[distribution]
    assert [rank["rank"] for rank in ranks] == list(range(hosts * processes))
    assert len({rank["weights"] for rank in ranks}) == 1
    for name, value in metrics.items():
        assert ranks[0]["metrics"][name] == pytest.approx(value, abs=1e-4), name
    with_smddp = distribution == "smddp"
    assert ("SMDDP" in report["stubs"]) == with_smddp and not report["mpirun"]
    by_mpirun = "mpirun" in report["launcher"]
    assert by_mpirun == with_smddp == ("sshd" in report["launcher"])


@pytest.mark.long
def test_real_mpirun_on_one_host(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Open MPI from its wheel. SIGTERM reaches the ranks in a namespace, and the job restarts."""
    need("unshare")
    command = [*size(1, 2, "pytorchddp"), "--stop-host", "1"]
    command += options(words, 2, epochs=20)  # SIGTERM has to come before the end
    report = rehearse(project, tmp_path, *command, **without_sdk)
    if not report["mpirun"] and "may not mount" in report["launcher"]:
        need(root=True)
    assert report["mpirun"] and report["launcher"] == "mpirun", report["launcher"]
    of_checks = verdicts(report)
    assert report["exit_status"] == 0 and set(of_checks.values()) == {"passed"}, report["output"]
    assert {"resumes-from-checkpoint", "weights-as-undisturbed"} <= of_checks.keys()


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
    assert report["exit_status"] == 0 and 0 not in report["exit_codes"], report["output"]
    of_checks = verdicts(report)
    assert of_checks.pop("hosts-succeeded") == "skipped"
    names = {"ends-in-time", "failure-names-cause"}
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
    """Let something listen on SageMaker's port, unless a program of this machine does anyway.

    A rehearsal of another test may have the port: it is waited for, since it gives the port back.
    """
    for _ in range(480):
        with ports.claimed([7777]) as port:
            if port == 7777:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", port))
                listener.listen()
                return
        time.sleep(1)
    pytest.fail("a rehearsal of another test has kept SageMaker's port")


def test_ctrl_c_ends_everything(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    child = pexpect.spawn(
        sys.executable,
        [*COMMAND[1:], *size(2, 1, "torch_distributed"), *options(words, 2)],
        cwd=str(project.path),
        env=project.environment(TMPDIR=str(tmp_path), **without_sdk),  # type: ignore[arg-type]
        timeout=300,
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


@pytest.mark.long
def test_sigterm_ends_everything(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    folder, log = tmp_path / "temporary files", tmp_path / "log"
    folder.mkdir()
    command = [*COMMAND, *size(2, 1, "pytorchddp"), *options(words, 2)]
    child = start(project, log, *command, TMPDIR=str(folder), **without_sdk)
    wait_until(lambda: "Invoking user" in log.read_text() or child.poll() is not None)
    child.terminate()
    assert child.wait(timeout=120) == 130, log.read_text()
    assert not processes_below(folder) and not list(folder.iterdir())
