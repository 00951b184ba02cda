"""Launching from a generated project: the command, the notebook, pip's resolver, back from S3."""

import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client import KernelManager

from projects import Project, bake

ONE_GPU = {"instance_type": "ml.g5.xlarge", "instance_count": 1}
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


@pytest.mark.parametrize(
    ("answers", "flag"),
    [
        (
            {"distribution": "smddp", "instance_type": "ml.p4d.24xlarge"},
            "sagemaker_distributed_dataparallel_enabled",
        ),
        (
            {"distribution": "torch_distributed", "spot": True},
            "sagemaker_torch_distributed_enabled",
        ),
        ({"distribution": "pytorchddp"}, "sagemaker_pytorch_ddp_enabled"),
        (ONE_GPU, None),
    ],
)
def test_dry_run(tmp_path: Path, answers: dict[str, Any], flag: str | None) -> None:
    """A request that botocore's model takes, on standard output alone, without credentials."""
    import botocore.session
    from botocore.validate import ParamValidator

    project = bake(tmp_path, **answers)
    found = project.run("python", "-m", "smlightning", "submit", "--dry-run", **NO_AWS)
    request = json.loads(found.stdout)
    model = botocore.session.get_session().get_service_model("sagemaker")
    report = ParamValidator().validate(
        request, model.operation_model("CreateTrainingJob").input_shape
    )
    assert not report.has_errors(), report.generate_report()
    assert [k for k in request["HyperParameters"] if k.endswith("_enabled")] == (
        [flag] if flag else []
    )
    assert request.get("EnableManagedSpotTraining", False) == answers.get("spot", False)


GPU_COUNTS = """
import json
from smlightning.launch import aws, instances
types = aws.shape("TrainingInstanceType").enum
print(json.dumps({name: instances.gpus(name) for name in types}))
"""


@pytest.mark.newest
def test_every_instance_type_has_its_gpus_counted(project: Project) -> None:
    """Of the newest botocore: a new family is missing until launch/instances.py counts its GPUs."""
    counted = json.loads(project.run("python", "-c", GPU_COUNTS).stdout)
    uncounted = {name for name, gpus in counted.items() if gpus is None}
    assert uncounted == {"ml.p6e-gb200.36xlarge"}


def test_gpu_counts_agree_with_amazon_ec2(project: Project) -> None:
    """moto carries EC2's own answer to DescribeInstanceTypes."""
    from moto import mock_aws

    counted = json.loads(project.run("python", "-c", GPU_COUNTS).stdout)
    with mock_aws():
        import boto3

        pages = boto3.client("ec2", "us-east-1").get_paginator("describe_instance_types").paginate()
        known = {
            f"ml.{t['InstanceType']}": t.get("GpuInfo", {}).get("Gpus", [])
            for page in pages
            for t in page["InstanceTypes"]
        }
    nvidia = {
        n: sum(g["Count"] for g in gpus)
        for n, gpus in known.items()
        if any(g["Manufacturer"] == "NVIDIA" for g in gpus)
    }
    compared = [name for name in counted if name in nvidia and counted[name] is not None]
    assert {name: counted[name] for name in compared} == {name: nvidia[name] for name in compared}
    assert not any(counted[name] for name in counted if not known.get(name, True))
    retired = {name for name in counted if counted[name]} - set(compared)
    assert {name.split(".")[1] for name in retired} == {"p2", "p3"}


RESOLVE = """
import json, sys
from smlightning import project
from smlightning.launch import images, job, requirements
here = project.find()
found = requirements.resolve(job.load(here.job_file, here), here, images.PROFILES[sys.argv[1]])
packages = [each["metadata"] for each in found.installs]
print(json.dumps({each["name"].lower(): each["version"] for each in packages}))
"""


# The oldest image has the most to refuse; every rehearsal resolves for the job's own, the newest.
@pytest.mark.parametrize(
    "image",
    [
        "smddp",
        pytest.param("mpirun", marks=pytest.mark.newest),
        pytest.param("current", marks=pytest.mark.newest),
    ],
)
def test_requirements_resolve_in_every_image_and_leave_torch_alone(
    project: Project, image: str
) -> None:
    """pip's own resolver, for the image's Python and Linux, with the image's torch in place."""
    installs = json.loads(project.run("python", "-c", RESOLVE, image).stdout)
    assert installs["pytorch-lightning"] == "2.6.6" and installs["transformers"] == "5.17.0"
    assert not [
        n
        for n in installs
        if n in ("torch", "torchvision", "triton") or n.startswith(("nvidia", "cuda"))
    ]


class Notebook:
    """launch.ipynb in a Jupyter kernel of its own, as somebody uses it.

    Attributes:
        shown: what each cell's last run printed and showed, by the cell's source.
        asked: the questions to which the kernel wanted an answer; each got an empty one.
    """

    def __init__(self, project: Project, **environment: str) -> None:
        cells = nbformat.read(project.path / "launch.ipynb", as_version=4).cells
        self.sources = [cell.source for cell in cells if cell.cell_type == "code"]
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
        """A new kernel, which knows nothing of the one before it."""
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
        """Run All, or all cells up to the one that has the text ``last``.

        As Jupyter does, it ends with a cell that raises an exception.

        Args:
            before: code to run in front of the cell that has a text.
            last: "" for all cells.

        Returns:
            Whether no cell raised one.
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

    def said(self, text: str) -> str:
        """What the cell with this text printed and showed."""
        return next(shown for source, shown in self.shown.items() if text in source)

    def lines(self) -> int:
        """Lines of text that the notebook would be saved with."""
        return sum(len(shown.splitlines()) for shown in self.shown.values())


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


# One run of the notebook in these tests asks pip and rehearses; the others take their word.
NO_PIP = """
from smlightning.launch import requirements
requirements.resolve = lambda *_: requirements.Resolution([], [])
"""
REHEARSED = "preflight.rehearsal = lambda *_: ['{}']"
QUICK = {"preflight.run": NO_PIP, "preflight.rehearsal(job": REHEARSED.format("true")}


def test_notebook_is_clean(project: Project) -> None:
    notebook = nbformat.read(project.path / "launch.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert len(cell.source.splitlines()) <= 24


def test_notebook_without_aws(tmp_path: Path, notebook_of: Callable[..., Notebook]) -> None:
    """Nothing is sent that preflight or the rehearsal refuses; without an account the notebook goes
    as far as it can, and says so in sentences.
    """
    project = small(tmp_path, instance_count=2)
    job = project.path / "job.toml"
    right = job.read_text(encoding="utf-8")
    notebook = notebook_of(project, **NO_AWS)

    def run_with(text: str, before: dict[str, str]) -> bool:
        job.write_text(text, encoding="utf-8")
        return notebook.run_all(before, "PyTorch(")

    assert not run_with(right.replace("volume_gb = 100", "volume_gb = 0"), QUICK)
    refusal = notebook.said("load(project.job_file")
    assert "error: volume_gb: " in refusal and "File" not in refusal
    refused = "error: a check found errors"
    assert run_with(right.replace("keep_alive_s = 0", "keep_alive_s = 21601"), QUICK)
    assert refused in notebook.said("PyTorch(")
    failing = {**QUICK, "preflight.rehearsal(job": REHEARSED.format("false")}
    assert run_with(right, failing)
    assert refused in notebook.said("PyTorch(")

    assert notebook.run_all(QUICK)
    assert "2 × ml.g5.xlarge, torch_distributed, torch 2.13.0 on Python 3.12; 2 ranks" in (
        notebook.said("load(project.job_file")
    )
    assert "skipped AWS: no credentials here" in notebook.said("preflight.run")
    assert "pytorch:2.13-cu133-amzn2023-sagemaker" in notebook.said("request.dry_run")
    for text in ("PyTorch(", "follow.follow", "follow.why", "fetch.fetch"):
        assert "error: there are no AWS credentials here" in notebook.said(text)
    assert "error: " in notebook.said("outcome.curves(")
    assert "error: " in notebook.said("predict.py")
    assert "Traceback" not in str(notebook.shown)
    assert notebook.lines() < 200


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
from smlightning.launch import account
from collections import defaultdict
allowed = account.permissions.Answer(allowed=True, missing=(), limit="")
# moto knows neither IAM's simulation
account.permissions.simulated = lambda *_: defaultdict(lambda: allowed)
account.CHECKS["quota"] = lambda _: []  # nor the quotas of SageMaker
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


@pytest.mark.timeout(1200)  # less than a minute where nothing else runs
def test_notebook_from_configuration_to_prediction(
    words: Path, tmp_path: Path, notebook_of: Callable[..., Notebook]
) -> None:
    """Against moto in the kernel's process. What was sent is what was rehearsed, down to the
    archive of the code; running all cells again sends nothing, nor does a new kernel.
    """
    project = small(tmp_path, instance_count=1, distribution="torch_distributed")
    region = {"AWS_DEFAULT_REGION": "us-east-1"}
    notebook = notebook_of(project, FOLDER=str(tmp_path), WORDS=str(words), **region)
    send = {"if send and sending": "send = True"}
    before = {"load(project.job_file": MOTO, "preflight.rehearsal(job": KEPT, **send}
    assert notebook.run_all({**before, "follow.follow": LOG, "fetch.fetch": MODEL})
    [name] = assert_launched_and_fetched(notebook)
    assert_sent_as_it_lies_here(project, tmp_path)
    assert_deployed_and_removed(notebook, name)

    # Again in the same kernel, up to the cells that only read what the account has of a job.
    assert not notebook.asked
    assert notebook.run_all({**QUICK, **send}, "follow.follow")
    assert_attached(notebook, name)

    notebook.restart()
    account = {"load(project.job_file": MOTO + ACCOUNT_OF_BEFORE, "follow.follow": LOG}
    assert notebook.run_all({**QUICK, **send, **account}, "follow.follow")
    assert_attached(notebook, name)


def assert_launched_and_fetched(notebook: Notebook) -> list[str]:
    """One run of all cells, from preflight to the prediction; the jobs that the account has."""
    preflight = notebook.said("preflight.run")
    assert "error" not in preflight and "no credentials" not in preflight
    assert "passed" in notebook.said("preflight.rehearsal")
    assert "sent    " in notebook.said("if send and sending")
    assert "completed. To fetch its model" in notebook.said("follow.follow")
    assert "completed. To fetch its model" in notebook.said("follow.why")
    compared = notebook.said("jobs.compare")
    assert "no jobs" not in compared and "─" in compared
    assert notebook.lines() < 200
    assert "train/loss=0.5" in notebook.said("follow.follow")
    assert "image/png" in notebook.said("outcome.curves(")
    assert "models/" in notebook.said("fetch.fetch")
    assert "Île de la Réunion\tlatin" in notebook.said("predict.py")
    return notebook.run(JOBS)[1].split()


def assert_deployed_and_removed(notebook: Notebook, name: str) -> None:
    """The last cells, with their words set to True."""
    said = {}
    for word in ("deploy_it", "remove"):
        source = next(source for source in notebook.sources if f"{word} = False" in source)
        done, said[word] = notebook.run(source.replace(f"{word} = False", f"{word} = True"))
        assert done and "error" not in said[word], said[word]
    assert f"--endpoint-name {name}" in said["deploy_it"]
    assert "removed Endpoint" in said["remove"]


def assert_attached(notebook: Notebook, name: str) -> None:
    """The notebook asked whether to send the same job again, sent none, and follows the one."""
    assert len(notebook.asked) == 1 and name in notebook.asked.pop()
    assert f"nothing was sent: the same job was sent as {name}" in (
        notebook.said("if send and sending")
    )
    assert f"attached to {name}" in notebook.said("sending.attached")
    assert "train/loss=0.5" in notebook.said("follow.follow")
    assert notebook.run(JOBS)[1].split() == [name]


def assert_sent_as_it_lies_here(project: Project, folder: Path) -> None:
    """The hyperparameters of job.toml, and an archive of src/ with the package beside it."""
    sent = {
        name: json.loads(value)
        for name, value in json.loads((folder / "sent.json").read_text())["HyperParameters"].items()
    }
    assert sent["sagemaker_program"] == "train.py"
    assert sent["sagemaker_torch_distributed_enabled"] is True
    assert sent["epochs"] == 2
    source, code = project.path / "src", folder / "code"
    with tarfile.open(folder / "sourcedir.tar.gz") as tar:
        tar.extractall(code, filter="data")
    files = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.suffix in (".py", ".txt", ".in")
    }
    sent_files = {
        path.relative_to(code)
        for path in code.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    package = {file for file in sent_files if file.parts[0] == "smlightning"}
    assert {"cluster", "data", "errors.py"} <= {file.parts[1] for file in package}
    assert {"train.py", "options.py"} <= {file.name for file in files}
    assert files == sent_files - package
    assert all((source / file).read_bytes() == (code / file).read_bytes() for file in files)
