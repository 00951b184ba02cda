"""The notebook from configuration to prediction; images and instances of the job."""

import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import nbformat
import pytest
from jupyter_client import KernelManager
from moto import mock_aws

from projects import Project, bake
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.job import aws, images, instances, job
from smlightning_sagemaker.preflight import requirements

NO_AWS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_ACCESS_KEY_ID": "",
}


def small(folder: Path, **answers: Any) -> Project:
    """A project whose job trains for seconds, on hosts of one GPU each."""
    made = bake(folder, instance_type="ml.g5.xlarge", **answers)
    text = made.read("job.toml").replace("# epochs = 10", "epochs = 2")
    text = text.replace('bucket = ""', 'bucket = "language-id"')
    (made.path / "job.toml").write_text(
        text.replace('role = ""', 'role = "training"'), encoding="utf-8"
    )
    return made


def gpu_counts() -> dict[str, int | None]:
    """GPUs of each instance type that trains."""
    return {name: instances.gpus(name) for name in aws.shape("TrainingInstanceType").enum}


@pytest.mark.newest
def test_every_instance_type_has_its_gpus_counted() -> None:
    """With the newest botocore, whose new types launch/instances.py may not know yet."""
    uncounted = {name for name, gpus in gpu_counts().items() if gpus is None}
    assert uncounted == {"ml.p6e-gb200.36xlarge"}


def test_gpu_counts_agree_with_amazon_ec2() -> None:
    """moto has EC2's own answer to DescribeInstanceTypes."""
    with mock_aws():
        pages = boto3.client("ec2", "us-east-1").get_paginator("describe_instance_types").paginate()
        types = [each for page in pages for each in page["InstanceTypes"]]
    known = {}
    for each in types:
        gpus = each.get("GpuInfo", {}).get("Gpus", [])
        nvidia = [gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA"]
        known[f"ml.{each['InstanceType']}"] = sum(nvidia)
    counted = {name: gpus for name, gpus in gpu_counts().items() if gpus is not None}
    compared = counted.keys() & known.keys()
    assert {name: counted[name] for name in compared} == {name: known[name] for name in compared}
    retired = {name for name, gpus in counted.items() if gpus} - compared
    assert {name.split(".")[1] for name in retired} == {"p2", "p3"}


# The oldest image rejects the most; every rehearsal resolves for the newest.
@pytest.mark.parametrize(
    "image",
    ["smddp", *(pytest.param(name, marks=pytest.mark.newest) for name in ("mpirun", "current"))],
)
def test_requirements_resolve_in_every_image_without_another_torch(
    project: Project, image: str
) -> None:
    """By uv, for the image's Python and Linux, with the image's torch in place."""
    here = projects.Project(project.path)
    wanted = job.load(here.job_file, here).replace(image=image)
    assert not list(requirements.resolved(wanted, here))
    ended = requirements.dry_run(wanted, here, images.PROFILES[image])
    versions = dict(requirements.INSTALLED.findall(ended.stderr))
    assert versions["pytorch-lightning"] == "2.6.6" and versions["transformers"] == "5.17.0"


class Notebook:
    """Runs launch.ipynb in a new Jupyter kernel.

    Attributes:
        shown: by a cell's source, what its last run printed and showed.
        asked: the questions of the kernel; each got an empty answer.
    """

    def __init__(self, project: Project, **environment: str) -> None:
        notebook = nbformat.read(project.path / "launch.ipynb", as_version=4)
        self.sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        self.shown: dict[str, str] = {}
        self.asked: list[str] = []
        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        variables = project.environment(**environment)
        self.manager.start_kernel(env=variables, cwd=str(project.path))
        self.connect()

    def connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def restart(self) -> None:
        """Start a new kernel."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.shown.clear()
        self.connect()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str) -> tuple[bool, str]:
        """Whether the code ended without an exception, and what it printed and showed."""
        outputs = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "error":
                outputs.append("\n".join(content["traceback"]))
            else:
                outputs.append(content.get("text", "") + str(content.get("data", "")))

        def answer(message: dict[str, Any]) -> None:
            self.asked.append(message["content"]["prompt"])
            self.client.input("")

        reply = self.client.execute_interactive(
            code, allow_stdin=True, output_hook=show, stdin_hook=answer, timeout=600
        )
        return reply["content"]["status"] == "ok", "".join(outputs)

    def run_all(self, before: dict[str, str], last: str = "") -> bool:
        """Run all cells in order, up to the first exception.

        Args:
            before: code to run in front of the cell that has a text.
            last: a text of the last cell; "" for all cells.

        Returns:
            Whether no cell raised an exception.
        """
        for source in self.sources:
            for text, code in before.items():
                if text in source:
                    done, shown = self.run(code)
                    assert done, shown
            done, self.shown[source] = self.run(source)
            if not done or (last and last in source):
                return done
        return True

    def output(self, text: str) -> str:
        """Output of the cell that contains this text."""
        return next(shown for source, shown in self.shown.items() if text in source)


@pytest.fixture
def notebook_of() -> Iterator[Callable[..., Notebook]]:
    """Starts the notebook of a project; its kernel ends with the test."""
    started: list[Notebook] = []

    def start(project: Project, **environment: str) -> Notebook:
        started.append(Notebook(project, **environment))
        return started[-1]

    yield start
    for notebook in started:
        notebook.close()


# One run of the notebook resolves requirements and rehearses; the others do not.
NO_UV = """
from smlightning_sagemaker.preflight import requirements
requirements.resolved = lambda *_, **__: []
"""
REHEARSED = "preflight.rehearsal = lambda *_: ['{}']"
QUICK = {"preflight.run": NO_UV, "preflight.rehearsal(job": REHEARSED.format("true")}


def test_notebook_without_aws(tmp_path: Path, notebook_of: Callable[..., Notebook]) -> None:
    """It sends no job that preflight or the rehearsal rejects; without an account each cell that
    needs one prints an error.
    """
    project = small(tmp_path, instance_count=2)
    file = project.path / "job.toml"
    right = file.read_text(encoding="utf-8")
    notebook = notebook_of(project, **NO_AWS)

    def run_with(text: str, before: dict[str, str]) -> bool:
        file.write_text(text, encoding="utf-8")
        return notebook.run_all(before, "PyTorch(")

    assert not run_with(right.replace("volume_gb = 100", "volume_gb = 0"), QUICK)
    assert "error: volume_gb: " in notebook.output("load(project.job_file")
    rejected = "error: a check found errors"
    assert run_with(right.replace('distribution = "auto"', 'distribution = "none"'), QUICK)
    assert rejected in notebook.output("PyTorch(")
    for failed in ("false", "sh', '-c', 'exit 130"):  # 130: Ctrl-C
        assert run_with(right, {**QUICK, "preflight.rehearsal(job": REHEARSED.format(failed)})
        assert rejected in notebook.output("PyTorch(")

    assert notebook.run_all(QUICK)
    assert "2 × ml.g5.xlarge" in notebook.output("load(project.job_file")
    assert "skipped AWS: no credentials here" in notebook.output("preflight.run")
    assert "pytorch:2.13" in notebook.output("request.dry_run")
    needing = ("PyTorch(", "follow.follow", "follow.why", "fetch.fetch", "curves(", "predict.py")
    for text in needing:
        assert "error: " in notebook.output(text)
    assert "Traceback" not in str(notebook.shown)


MOTO = """
import json, os
os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
import boto3
from moto import mock_aws
mock_aws().start()
service = {"Service": "sagemaker.amazonaws.com"}
trust = {"Effect": "Allow", "Principal": service, "Action": "sts:AssumeRole"}
policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
boto3.client("iam").create_role(RoleName="training", AssumeRolePolicyDocument=policy)
s3 = boto3.client("s3", "us-east-1")
s3.create_bucket(Bucket="language-id")
from smlightning_sagemaker.preflight import role
role.simulated = lambda *_: []  # moto does not know IAM's simulation; nothing is denied
"""
# The same account, as a kernel sees it that was started after a job was sent from another one.
ACCOUNT_OF_BEFORE = """
with open(os.environ["FOLDER"] + "/sent.json") as file:
    before = json.load(file)
boto3.client("sagemaker", "us-east-1").create_training_job(**before)
"""
LOG = """
logs, group = boto3.client("logs", "us-east-1"), "/aws/sagemaker/TrainingJobs"
logs.create_log_group(logGroupName=group)
logs.create_log_stream(logGroupName=group, logStreamName=f"{name}/algo-1-1")
lines = ["step=1 epoch=1 train/loss=1.5 lr=0.1", "step=2 epoch=1 train/loss=0.5 lr=0.1"]
lines.append("test/accuracy 0.8123")
now = int(__import__("time").time() * 1000)
events = [{"timestamp": now, "message": line} for line in lines]
logs.put_log_events(logGroupName=group, logStreamName=f"{name}/algo-1-1", logEvents=events)
"""
# The rehearsal's model stands for the one of the job, which does not run.
KEPT = """
rehearsal, folder = preflight.rehearsal, os.environ["FOLDER"]
more = ["--keep", f"{folder}/kept", "--", "--dataset", os.environ["WORDS"], "--epochs", "2"]
preflight.rehearsal = lambda *given: [*rehearsal(*given), *more]
"""
MODEL = """
import tarfile
with tarfile.open(f"{folder}/model.tar.gz", "w:gz") as tar:
    tar.add(f"{folder}/kept/job/host-1/model", ".")
s3.upload_file(f"{folder}/model.tar.gz", "language-id", f"{name}/output/model.tar.gz")
s3.download_file(
    "language-id", f"{name}/source/sourcedir.tar.gz", f"{folder}/sourcedir.tar.gz"
)
sent = boto3.client("sagemaker", "us-east-1").describe_training_job(TrainingJobName=name)
members = ("TrainingJobName", "RoleArn", "AlgorithmSpecification", "OutputDataConfig")
members += ("ResourceConfig", "StoppingCondition", "HyperParameters")
with open(f"{folder}/sent.json", "w") as file:
    json.dump({member: sent[member] for member in members}, file)
"""
JOBS = """
listed = boto3.client("sagemaker", "us-east-1").list_training_jobs()["TrainingJobSummaries"]
print(*(job["TrainingJobName"] for job in listed))
"""


@pytest.mark.timeout(1200)
def test_notebook_from_configuration_to_prediction(
    words: Path, tmp_path: Path, notebook_of: Callable[..., Notebook]
) -> None:
    """Against moto in the kernel's process. It sends what it rehearsed, down to the archive of the
    code. Running all cells again, in a new kernel, sends no other job.
    """
    project = small(tmp_path, instance_count=1, distribution="torch_distributed")
    region = {"AWS_DEFAULT_REGION": "us-east-1"}
    notebook = notebook_of(project, FOLDER=str(tmp_path), WORDS=str(words), **region)
    send = {"if send and sending": "send = True"}
    before = {"load(project.job_file": MOTO, "preflight.rehearsal(job": KEPT, **send}
    assert notebook.run_all({**before, "follow.follow": LOG, "fetch.fetch": MODEL})
    assert not notebook.asked
    assert_launched_and_fetched(notebook)
    [name] = notebook.run(JOBS)[1].split()
    assert_sent_as_it_lies_here(project, tmp_path)

    # Again, up to the cells that only read what the account has of a job.
    notebook.restart()
    account = {"load(project.job_file": MOTO + ACCOUNT_OF_BEFORE, "follow.follow": LOG}
    assert notebook.run_all({**QUICK, **send, **account}, "follow.follow")
    assert_follows_the_first(notebook, name)


def assert_launched_and_fetched(notebook: Notebook) -> None:
    """One run of all cells, from preflight to the prediction."""
    preflight = notebook.output("preflight.run")
    assert "error" not in preflight and "no credentials" not in preflight
    expected = {
        "preflight.rehearsal": "passed",
        "if send and sending": "sent    ",
        "follow.follow": "train/loss=0.5",
        "follow.why": "completed",
        "outcome.curves(": "image/png",
        "fetch.fetch": "models/",
        "predict.py": "Île de la Réunion\tlatin",
    }
    for text, part in expected.items():
        assert part in notebook.output(text), (text, notebook.output(text))
    assert sum(len(shown.splitlines()) for shown in notebook.shown.values()) < 200


def assert_follows_the_first(notebook: Notebook, name: str) -> None:
    """The notebook asked whether to send the same job again, sent none, and follows the first."""
    assert len(notebook.asked) == 1 and name in notebook.asked.pop()
    assert f"follow  {name}" in notebook.output("sending.job_to_follow")
    assert "train/loss=0.5" in notebook.output("follow.follow")
    assert notebook.run(JOBS)[1].split() == [name]


def assert_sent_as_it_lies_here(project: Project, folder: Path) -> None:
    """The hyperparameters of job.toml, and an archive of src/, in which the wheel is."""
    sent = json.loads((folder / "sent.json").read_text())["HyperParameters"]
    expected = {"sagemaker_program": "train.py", "sagemaker_torch_distributed_enabled": True}
    expected["epochs"] = 2
    assert {name: json.loads(sent[name]) for name in expected} == expected
    source = project.path / "src"
    with tarfile.open(folder / "sourcedir.tar.gz") as tar:
        members = [each for each in tar.getmembers() if each.isfile()]
        code = {each.name: file.read() for each in members if (file := tar.extractfile(each))}
    ours = {path.name: path.read_bytes() for path in source.glob("*.*")}
    assert {name: code[name] for name in code if "/" not in name} == ours and "train.py" in ours
    assert any(name.endswith(".whl") for name in ours)
