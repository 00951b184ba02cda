"""Rehearsals of the generated project, end to end: launchers, faults, and nothing left behind."""

import gzip
import json
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
import pytest

from projects import Project, need
from rehearsals import failed_checks, options, processes_below, rehearse, size, verdicts
from smlightning import ports

TEMPORARY = Path(tempfile.gettempdir())
LEFT_BY_REHEARSALS = ("rehearsal", "ompi", "done.")  # beginnings of names of temporary files


@pytest.fixture(scope="module")
def exact(project: Project, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The project's own src/ without dropout, whose draws differ by rank: the rest is equal."""
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
    """One process without a launcher, and nothing installed but what `make rehearse` installs."""
    command = [*exact, *size(1, 1, "none"), *options(words, 1)]
    return rehearse(project, tmp_path_factory.mktemp("alone"), *command, **without_sdk)


def test_none_on_one_host(alone: dict[str, Any]) -> None:
    output = alone["output"]
    assert alone["exit_status"] == 0 and alone["ok"], output
    assert "\x1b" not in output, "neither colours nor a spinner where no terminal is"
    assert "Training Env" not in output, "not the toolkit's listing of variables"
    assert alone["versions"]["torch"] in output and alone["versions"]["image_torch"] in output


@pytest.mark.parametrize(
    "hosts, processes, distribution",
    [
        (2, 2, "torch_distributed"),
        (2, 2, "smddp"),
        pytest.param(3, 1, "pytorchddp", marks=pytest.mark.long),
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
    """Every check passes; all ranks end as one process does with the same global batch."""
    world_size = hosts * processes
    command = [*exact, *size(hosts, processes, distribution), *options(words, world_size)]
    report = rehearse(project, tmp_path, *command)
    assert report["exit_status"] == 0 and report["ok"], report["output"]
    assert set(verdicts(report).values()) == {"passed"}
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(world_size))
    assert len({rank["weights"] for rank in ranks}) == 1
    for name, value in alone["ranks"][0]["metrics"].items():
        assert ranks[0]["metrics"][name] == pytest.approx(value, abs=1e-4), name
    assert ("SMDDP" in report["stubs"]) == (distribution == "smddp")
    assert not report["mpirun"] and report["launcher"] in report["output"]
    by_mpirun = "mpirun" in report["launcher"]
    assert by_mpirun == ("ddp" in distribution) == ("sshd" in report["launcher"])
    assert_package_is_each_hosts(ranks)


TWO_GROUPS = """
[request]
ResourceConfig.InstanceGroups = [
  { InstanceGroupName = "a", InstanceType = "ml.g5.12xlarge", InstanceCount = 1 },
  { InstanceGroupName = "b", InstanceType = "ml.g6.12xlarge", InstanceCount = 1 },
]
"""


@pytest.mark.long
def test_hosts_of_two_groups_train_as_one(project: Project, words: Path, tmp_path: Path) -> None:
    """The toolkit takes each group for a cluster of its own, unless it is told of all groups."""
    text = (project.path / "job.toml").read_text(encoding="utf-8")
    assert text.count("\n[request]\n") == 1
    job_file = tmp_path / "job.toml"
    job_file.write_text(text.replace("\n[request]\n", TWO_GROUPS), encoding="utf-8")
    command = ["--job", str(job_file), *size(2, 2, "torch_distributed"), *options(words, 4)]
    report = rehearse(project, tmp_path, *command)
    assert report["exit_status"] == 0 and report["ok"], report["output"]
    assert verdicts(report)["world-size"] == "passed"
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
    assert len({rank["weights"] for rank in report["ranks"]}) == 1


def assert_package_is_each_hosts(ranks: list[dict[str, Any]]) -> None:
    """Not the one that this machine has installed, or that PYTHONPATH names."""
    for rank in ranks:
        of_host = f"/host-{rank['host'] + 1}/code/smlightning/__init__.py"
        assert rank["package"].endswith(of_host), rank["package"]


DRIFT = """
def drift(self, *_):
    if not self.current_epoch:  # after the first one train.py compares weights itself
        return
    for parameter in self.parameters():
        parameter.data.mul_(1 + self.global_rank / 100)
Model.on_train_batch_end = drift
"""


@pytest.mark.long
def test_ranks_that_drift_apart_are_found_though_all_test_the_best_weights_of_one(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    shutil.copytree(project.path / "src", tmp_path / "src")
    with (tmp_path / "src" / "model.py").open("a", encoding="utf-8") as file:
        file.write(DRIFT)
    command = ["--source-dir", str(tmp_path / "src"), *size(1, 2, "torch_distributed")]
    command += ["--", "--dataset", str(words), "--epochs", "2"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert failed_checks(report).keys() == {"weights-identical"}, report["output"]
    assert report["exit_status"] == 1


@pytest.mark.long
def test_real_mpirun_on_one_host(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Open MPI from its wheel, nothing of the system; the job is started again after its loss."""
    need("unshare")
    command = [*size(1, 2, "pytorchddp"), "--lose-host", "1"]
    command += options(words, 2, epochs=8)  # the loss has to come before training's end
    report = rehearse(project, tmp_path, *command, "--checkpoint_steps", "2", **without_sdk)
    if not report["mpirun"] and "may not mount" in report["launcher"]:
        need(root=True)
    assert report["mpirun"] and report["launcher"] == "mpirun", report["launcher"]
    of_checks = verdicts(report)
    assert report["exit_status"] == 0 and set(of_checks.values()) == {"passed"}, report["output"]
    assert {"resumes-from-checkpoint", "weights-as-undisturbed"} <= of_checks.keys()
    assert_package_is_each_hosts(report["ranks"])


CHANGED_FLAG = """
import sys
from smlightning.launch import request
from smlightning.rehearsal import main
dry_run = request.dry_run
def changed(*arguments, **options):
    made = dry_run(*arguments, **options)
    flag = "sagemaker_torch_distributed_enabled"
    assert made["HyperParameters"][flag] == "true"
    return {**made, "HyperParameters": {**made["HyperParameters"], flag: "false"}}
request.dry_run = changed
sys.exit(main(sys.argv[1:]))
"""


def job_with_a_channel(project: Project, folder: Path) -> list[str]:
    """The option that names a job.toml whose data is a channel."""
    text = project.read("job.toml")
    for line, replacement in (
        ('# training = "s3://my-bucket/my-data/"', 'training = "s3://words/data/"'),
        ("# epochs = 10", 'dataset = "training"'),
    ):
        assert line in text
        text = text.replace(line, replacement)
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return ["--job", str(folder / "job.toml")]


@pytest.mark.long
def test_a_changed_flag_of_the_request_fails(project: Project, words: Path, tmp_path: Path) -> None:
    """The request that is sent is what is rehearsed, and no copy of its parts."""
    command = [*job_with_a_channel(project, tmp_path), "--channel", f"training={words.parent}"]
    command += [*size(1, 2, "torch_distributed"), "--batches", "2"]
    command += ["--json", str(tmp_path / "report.json")]
    output = project.run("python", "-c", CHANGED_FLAG, *command, check=False).stdout
    assert "steps=2 " in output and "300 texts" in output, output
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["ok"] and failed_checks(report)["world-size"] == "1 on 1 ranks; expected 2"


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


def test_a_jobs_channel_comes_from_s3(project: Project, words: Path, tmp_path: Path) -> None:
    command = [*job_with_a_channel(project, tmp_path), *size(1, 1, "none"), "--batches", "2"]
    ended = project.run("python", "-c", ON_MOTOS_S3, str(words), *command, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "channel training: 1 objects of s3://words/data/" in ended.stdout
    assert "300 texts" in ended.stdout, ended.stdout


def test_without_access_to_s3_one_line_says_what_to_give(project: Project, tmp_path: Path) -> None:
    command = [*job_with_a_channel(project, tmp_path), *size(1, 1, "none")]
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    line = ["python", "-m", "smlightning", "rehearse", *command]
    ended = project.run(*line, check=False, **nobody)
    [error] = ended.stderr.splitlines()
    assert ended.returncode == 2 and "--channel training=DIR" in error


@pytest.mark.parametrize(
    "fault, rank, distribution, cause",
    [
        ("--fail-rank", 1, "torch_distributed", "rank 1 fails because"),
        pytest.param(
            "--kill-rank", 0, "pytorchddp", "rank 0 on host 127.0.0.1", marks=pytest.mark.long
        ),
    ],
)
def test_a_lost_rank_ends_the_job_and_is_named_and_no_secret_is_to_be_seen(
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
    """In no request, log, listing of variables, failure or other file, nor in what was printed."""
    assert value not in json.dumps(report)
    files = [path for path in folder.rglob("*") if path.is_file()]
    logs = [path.read_text() for path in files if path.name == "log.txt"]
    assert len(logs) == 2 and all("Training Env:" in text for text in logs)
    assert {"failure", "hyperparameters.json"} <= {path.name for path in files}
    assert not [path for path in files if value.encode() in content(path)]


def content(path: Path) -> bytes:
    """A file's bytes; those of an archive of the code unpacked."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.parametrize(
    "place", ["log.txt", "failure", "hyperparameters.json", "sourcedir.tar.gz", "request", "key"]
)
def test_a_secret_that_is_planted_is_seen(place: str, tmp_path: Path) -> None:
    """The search above finds it in each place, and nothing where there is nothing."""
    for host in ("algo-1", "algo-2"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "log.txt").write_text("Training Env:\n")
        (tmp_path / host / "failure").write_text("no")
        (tmp_path / host / "hyperparameters.json").write_text("{}")
        (tmp_path / host / "sourcedir.tar.gz").write_bytes(gzip.compress(b"code"))
    assert_nowhere(VALUE, {"request": {"Environment": {}}}, tmp_path)
    report: dict[str, Any] = {"request": {"Environment": {}}}
    planted = f"x {VALUE} y"
    if place == "request":
        report["request"]["Environment"]["WANDB_API_KEY"] = planted
    elif place == "sourcedir.tar.gz":
        (tmp_path / "algo-2" / place).write_bytes(gzip.compress(planted.encode()))
    else:
        with (tmp_path / "algo-2" / place).open("a") as file:
            file.write(planted)
    with pytest.raises(AssertionError):
        assert_nowhere(VALUE, report, tmp_path)


def state(project: Project) -> set[str]:
    """What a rehearsal must leave as it was: files with times, temporary ones, packages."""
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


def start(project: Project, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
    """A rehearsal beside the test."""
    command = [sys.executable, "-m", "smlightning", "rehearse", *arguments]
    environment = project.environment(**variables)
    return subprocess.Popen(command, cwd=project.path, env=environment, stdout=subprocess.DEVNULL)


def test_nothing_is_left_behind_and_two_can_run_at_once(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Side by side, on other ports than 7777, which is taken."""
    before = state(project)
    folder = tmp_path / "temporary files"
    folder.mkdir()
    running = []
    with socket.socket() as listener:
        occupy_port_7777(listener)
        for number in range(2):
            command = [*size(1, 1, "torch_distributed"), "--json", str(tmp_path / f"{number}.json")]
            command += options(words, 1)
            running.append(start(project, *command, TMPDIR=str(folder), **without_sdk))
        assert [rehearsal.wait() for rehearsal in running] == [0, 0]
    reports = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    assert len({report["port"] for report in reports} | {7777}) == 3
    assert not list(folder.iterdir()) and not processes_below(folder)
    # Tests beside this one leave nothing either, but not at once.
    left, deadline = state(project) - before, time.monotonic() + 120
    while left and time.monotonic() < deadline:
        time.sleep(1)
        left &= state(project) - before
    assert not left


def test_ctrl_c_ends_everything(
    project: Project, words: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = ["-m", "smlightning", "rehearse", *size(2, 1, "torch_distributed")]
    child = pexpect.spawn(
        sys.executable,
        [*command, *options(words, 2)],
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(
    number: signal.Signals,
    project: Project,
    words: Path,
    tmp_path: Path,
    without_sdk: dict[str, str],
) -> None:
    folder, log = tmp_path / "temporary files", tmp_path / "log"
    folder.mkdir()
    command = [sys.executable, "-m", "smlightning", "rehearse", *size(2, 1, "pytorchddp")]
    with log.open("w") as file:
        child = subprocess.Popen(
            [*command, *options(words, 2)],
            cwd=project.path,
            env=project.environment(TMPDIR=str(folder), **without_sdk),
            stdout=file,
            stderr=file,
        )
        while "Invoking user" not in log.read_text():
            assert child.poll() is None, log.read_text()
            time.sleep(0.1)
        child.send_signal(number)
        assert child.wait(timeout=20) == 130
    assert not processes_below(folder) and not list(folder.iterdir())
