"""Launching from a generated project: the command, the notebook, pip's resolver, back from S3."""

import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from projects import Project, bake

ONE_GPU = {"instance_type": "ml.g5.xlarge", "instance_count": 1}
NO_AWS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_ACCESS_KEY_ID": "",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose job trains for seconds, on two hosts of one GPU each."""
    made = bake(tmp_path_factory.mktemp("small"), instance_type="ml.g5.xlarge")
    text = made.read("job.toml").replace("# epochs = 10", "epochs = 2")
    text = text.replace('bucket = ""', 'bucket = "language-id"')
    (made.path / "job.toml").write_text(
        text.replace('role = ""', 'role = "training"'), encoding="utf-8"
    )
    return made


@pytest.mark.parametrize(
    ("answers", "flag"),
    [
        ({"distribution": "smddp"}, "sagemaker_distributed_dataparallel_enabled"),
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
from smlightning.launch import images
from smlightning.launch import requirements
installs = requirements.resolve(project.find().requirements, images.PROFILES[sys.argv[1]])
print(json.dumps({i["metadata"]["name"].lower(): i["metadata"]["version"] for i in installs}))
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


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


EXPECTED = {
    "modest": 0,
    "hungry": 1,
    "absent": 1,
}  # preflight's status where this is the requirement
PREFLIGHTS = f"""
import contextlib, io, json
from pathlib import Path
from smlightning.__main__ import main
for package in {[*EXPECTED]}:
    Path("src/requirements.txt").write_text(package + "\\n")
    with contextlib.redirect_stdout(io.StringIO()):
        status = main(["preflight", "--offline", "--json", "report.json"])
    print(json.dumps({{"status": status, **json.loads(Path("report.json").read_text())}}))
"""


def test_preflight_finds_the_requirement_behind_which_another_torch_hides(tmp_path: Path) -> None:
    project = bake(tmp_path / "project")
    wheel(tmp_path, "torch", "99.0")
    wheel(tmp_path, "hungry", "1.0", "torch>=99")
    wheel(tmp_path, "modest", "1.0", "torch>=2")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    said = project.run("python", "-c", PREFLIGHTS, **offline).stdout
    for (package, status), report in zip(
        EXPECTED.items(), map(json.loads, said.splitlines()), strict=True
    ):
        assert report["status"] == status, report
        errors = [finding for finding in report["findings"] if finding["level"] == "error"]
        assert len(errors) == status
        if package == "hungry":
            assert (
                "torch 99.0, as hungry asks, would replace the image's torch 2.5.1"
                in errors[0]["problem"]
            )


def run_notebook(project: Project, before: dict[str, str], **environment: str) -> list[Any]:
    """Execute launch.ipynb, top to bottom; `before`: code in front of the cell that has a text."""
    notebook = nbformat.read(project.path / "launch.ipynb", as_version=4)
    cells = notebook.cells
    for text, code in before.items():
        place = next(
            i for i, cell in enumerate(cells) if cell.cell_type == "code" and text in cell.source
        )
        cells.insert(place, nbformat.v4.new_code_cell(code))
    folder = {"metadata": {"path": str(project.path)}}
    client = nbclient.NotebookClient(notebook, timeout=600, resources=folder, kernel_name="python3")
    client.km = client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    variables = project.environment(**environment)
    given = {
        name: value
        for name, value in variables.items()
        if name in environment or not name.startswith("AWS_")
    }
    client.execute(env=given)
    return [cell for cell in cells if cell.cell_type == "code"]


def said(cells: list[Any], text: str) -> str:
    """What the cell with this text printed and showed."""
    cell = next(cell for cell in cells if text in cell.source)
    return "".join(out.get("text", "") + str(dict(out.get("data", {}))) for out in cell.outputs)


def lines_of(cells: list[Any]) -> int:
    """Lines of text that a notebook would be saved with."""
    return sum(len(out.get("text", "").splitlines()) for cell in cells for out in cell.outputs)


# A rehearsal takes half a minute: one notebook of these tests plays it, whole.
PLAY_NOTHING = {"preflight.rehearsal(job": "preflight.rehearsal = lambda *_: ['true']"}


def test_notebook_is_clean(project: Project) -> None:
    notebook = nbformat.read(project.path / "launch.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert len(cell.source.splitlines()) <= 24


def test_notebook_sends_nothing_that_preflight_refuses(tmp_path: Path) -> None:
    project = bake(tmp_path, **ONE_GPU)
    job = project.path / "job.toml"
    job.write_text(
        job.read_text(encoding="utf-8").replace("volume_gb = 100", "volume_gb = 0"),
        encoding="utf-8",
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError) as raised:
        run_notebook(project, {}, **NO_AWS)
    assert "error: volume_gb: found 0" in str(raised.value) and "File" not in str(raised.value)
    text = job.read_text(encoding="utf-8").replace("volume_gb = 0", "volume_gb = 100")
    job.write_text(text.replace("keep_alive_s = 0", "keep_alive_s = 21601"), encoding="utf-8")
    cells = run_notebook(project, PLAY_NOTHING, **NO_AWS, PIP_NO_INDEX="1")
    assert "error: preflight or the rehearsal refuses this job" in said(cells, "PyTorch(")
    job.write_text(text, encoding="utf-8")
    cells = run_notebook(
        project, {"preflight.rehearsal(job": "preflight.rehearsal = lambda *_: ['false']"}, **NO_AWS
    )
    assert "error: preflight or the rehearsal refuses this job" in said(cells, "PyTorch(")


def test_notebook_without_aws(small: Project) -> None:
    """It goes as far as somebody without an account can go, and says so in a sentence."""
    cells = run_notebook(small, PLAY_NOTHING, **NO_AWS)
    assert "2 × ml.g5.xlarge, torch_distributed, torch 2.13.0 on Python 3.12; 2 ranks" in said(
        cells, "load(project.job_file"
    )
    assert "skipped AWS: no credentials here" in said(cells, "preflight.run")
    assert "pytorch:2.13-cu133-amzn2023-sagemaker" in said(cells, "request.dry_run")
    for text in ("PyTorch(", "follow.follow", "follow.why", "fetch.fetch"):
        assert "error: there are no AWS credentials here" in said(cells, text)
    assert "error: " in said(cells, "outcome.curves(") and "error: " in said(cells, "predict.py")
    assert "Traceback" not in str([cell.outputs for cell in cells])
    assert lines_of(cells) < 200


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
allowed = account.permissions.Answer(allowed=True, missing=())
# moto knows neither IAM's simulation
account.permissions.simulated = lambda *_: defaultdict(lambda: allowed)
account.CHECKS["quota"] = lambda _: []  # nor the quotas of SageMaker
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
sent = boto3.client("sagemaker", "us-east-1").describe_training_job(TrainingJobName=name)
"""
MODEL = """
s3.upload_file(os.environ["FOLDER"] + "/model.tar.gz", "language-id", f"{name}/output/model.tar.gz")
archive = os.environ["FOLDER"] + "/sourcedir.tar.gz"
s3.download_file("language-id", f"{name}/source/sourcedir.tar.gz", archive)
with open(os.environ["FOLDER"] + "/sent.json", "w") as file:
    json.dump(sent["HyperParameters"], file)
"""


def test_notebook_from_configuration_to_prediction(
    small: Project, words: Path, tmp_path: Path
) -> None:
    """Against moto in the kernel's process; the job does not run: its model was trained here.

    What was sent is what was rehearsed, down to the archive of the code.
    """
    small.run(
        "python",
        "src/train.py",
        "--dataset",
        str(words),
        "--epochs",
        "2",
        "--output_dir",
        str(tmp_path),
    )
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "model", ".")
    before = {"load(project.job_file": MOTO, "if send and sending": "send = True"}
    before |= {"follow.follow": LOG, "fetch.fetch": MODEL}
    cells = run_notebook(small, before, FOLDER=str(tmp_path), AWS_DEFAULT_REGION="us-east-1")
    preflight = said(cells, "preflight.run")
    assert "error" not in preflight and "no credentials" not in preflight
    assert "passed" in said(cells, "preflight.rehearsal")
    assert "completed. To fetch its model" in said(cells, "follow.follow")
    assert "completed. To fetch its model" in said(cells, "follow.why")
    assert "no jobs" not in said(cells, "jobs.compare") and "─" in said(cells, "jobs.compare")
    assert lines_of(cells) < 200
    assert "train/loss=0.5" in said(cells, "follow.follow")
    assert "image/png" in said(cells, "outcome.curves(")
    assert "sent    " in said(cells, "if send and sending")
    assert "models/" in said(cells, "fetch.fetch")
    assert "Île de la Réunion\tlatin" in said(cells, "predict.py")
    sent = {
        name: json.loads(value)
        for name, value in json.loads((tmp_path / "sent.json").read_text()).items()
    }
    assert (
        sent["sagemaker_program"] == "train.py"
        and sent["sagemaker_torch_distributed_enabled"] is True
    )
    assert sent["epochs"] == 2
    with tarfile.open(tmp_path / "sourcedir.tar.gz") as tar:
        tar.extractall(tmp_path / "code", filter="data")
    source, code = small.path / "src", tmp_path / "code"
    files = {
        path.relative_to(source) for path in source.rglob("*") if path.suffix in (".py", ".txt")
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
