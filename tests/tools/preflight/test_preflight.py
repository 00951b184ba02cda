"""The mistakes that preflight finds in job.toml, the request and src/, and what a job costs."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from options import Options
from small_job import GOOD, edited
from smlightning.options import option
from smlightning_sagemaker import preflight
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.findings import has_errors
from smlightning_sagemaker.job import price, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import channels, image, source


@pytest.fixture
def good() -> Job:
    return GOOD


PROJECT = projects.find()


def offline(wanted: Job) -> list[str]:
    return [str(finding) for finding in preflight.offline_checks(wanted, PROJECT)[0]]


ASKED = """
import sys
from typing import Any
asked = []
def audit(event, facts):
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        asked.append((event, str(facts)))
sys.addaudithook(audit)
from smlightning_sagemaker.__main__ import main
status = main(["preflight", "--offline"])
print("asked:", status, asked)
"""


def test_offline_preflight_opens_no_connection():
    """Preflight resolves no name, opens no connection and starts no pip that would.

    The test removes the network if this machine allows it.
    """
    without = ["unshare", "--net"]
    alone = shutil.which("unshare") and not subprocess.run([*without, "true"]).returncode
    line = [*(without if alone else []), sys.executable, "-c", ASKED]
    ended = subprocess.run(line, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "asked: 0 []"
    assert "skipped src/requirements.txt: not resolved" in ended.stdout


def test_a_dry_run_needs_no_credentials_and_prints_json_only(tmp_path, capsys):
    path = edited(tmp_path / "job.toml", {"role": "", "distribution": "torch_distributed"})
    assert main(["submit", "--dry-run", "--job", str(path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["RoleArn"] == "arn:aws:iam::000000000000:role/placeholder-for-dry-run"


def test_an_accepted_error_does_not_stop_a_job(tmp_path, capsys):
    changes = {"instance_count": 2, "distribution": "none", "hyperparameters.none_such": 1}
    path = edited(tmp_path / "job.toml", changes)
    command = ["submit", "--dry-run", "--job", str(path), "--accept", "distribution"]
    assert main(command) == 1
    said = capsys.readouterr()
    assert "error   hyperparameters.none_such" in said.err and not said.out
    assert main([*command, "--accept", "hyperparameters.none_such"]) == 0
    said = capsys.readouterr()
    assert "warning distribution" in said.err
    assert json.loads(said.out)["ResourceConfig"]["InstanceCount"] == 2


REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
TORCH_2_8 = f"{REGISTRY}/pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"distribution": "smddp"},
            ["2025-10-29", "CVE-2025-32434", "CVE-2026-24747", "its S3", "torch_distributed"],
        ),
        (
            {"distribution": "pytorchddp", "image": "smddp"},
            ['distribution = "torch_distributed" and image = "auto"'],
        ),
        ({"image": TORCH_2_8}, ["CVE-2026-24747", 'image = "auto"']),
        ({"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/team:1"}, []),
    ],
)
def test_the_holes_of_an_image_are_one_warning(good, changes, words):
    found = list(image.holes(good.replace(**changes), {}, PROJECT))
    assert [(each.level, each.key) for each in found] == [("warning", "image")] * bool(words)
    assert all(word in finding.sentence for finding in found for word in words)


def test_a_job_resumes_from_auto_never_or_a_path(good):
    levels = {}
    for value in ("auto", "never", "nevr", "/opt/ml/checkpoints/000007-step000390-0.ckpt", "~/x/1"):
        job = good.replace(hyperparameters={"resume": value})
        found = channels.local_paths(job, {}, PROJECT)
        levels[value] = [(each.level, each.key) for each in found]
    for wrong in ("nevr", "~/x/1"):
        assert levels.pop(wrong) == [("error", "hyperparameters.resume")]
    assert not any(levels.values())


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [
        (
            "{folder}/here.csv",
            "error",
            "set its address under [channels]",
        ),
        ("./none", "error", "upload it"),
        ("~/none", "error", "upload it"),
        ("C:\\data", "error", "upload it"),
        ("/data/none.CSV", "error", "upload it"),
        ("/tmp/none.csv", "", ""),  # noqa: S108  src/ may write it there
        ("./train.py", "", ""),  # of src/, in whose folder train.py starts
        ("s3://bucket/x.csv", "warning", "write it under [channels], and the channel here"),
        ("org/model", "", ""),
        ("bert-base-cased", "", ""),
        ("https://a.example/x.csv", "", ""),
        ("/opt/ml/model/x.pt", "", ""),
        ("/", "", ""),
        ("/tmp", "", ""),  # noqa: S108
    ],
)
def test_a_path_of_this_machine_is_an_error(good, tmp_path, monkeypatch, value, level, words):
    """An error in job.toml and in an option's default; missing output folders are no error."""
    (tmp_path / "here.csv").touch()
    value = value.replace("{folder}", str(tmp_path))
    new = dataclasses.make_dataclass(
        "New",
        [("words", str, option(value, "their file", resume="data"))],
        bases=(Options,),
        frozen=True,
    )
    monkeypatch.setattr("options.Options", new)
    for key, more in {"words": {}, "dataset": {"dataset": value, "words": "cldr"}}.items():
        options = {"output_dir": str(tmp_path), **more}
        found = list(channels.local_paths(good.replace(hyperparameters=options), {}, PROJECT))
        assert [(each.level, each.key) for each in found] == (
            [(level, f"hyperparameters.{key}")] if level else []
        )
        assert not level or words in str(found[0])


def test_src_is_complete_and_small(good, tmp_path):
    here, folder = projects.Project(tmp_path), tmp_path / "src"
    folder.mkdir()
    found = {finding.key for finding in source.complete(good, {}, here)}
    assert found == {"src/train.py", "src/requirements.txt"}
    for name in ("train.py", "requirements.txt"):
        (folder / name).touch()
    assert not [*source.complete(good, {}, here), *source.size(good, {}, here)]
    (folder / "big.bin").write_bytes(b"\0" * (51 * 2**20))
    (finding,) = source.size(good, {}, here)
    assert (finding.level, finding.key) == ("error", "src/")


def test_cost_is_never_invented(good):
    assert "at most 2 instances × 1 h" in price.cost(good, offline=True)
    assert not re.search(r"\d USD|an hour", price.cost(good, offline=True))
    said = price.cost(good.replace(price_per_hour=2.0, keep_alive_s=1800))
    made_of = "2 instances × (1 h (max_run_s) + 0.5 h (keep_alive_s)) × 2 USD"
    assert said == f"cost    4.00 USD an hour, at most 6.00 USD: {made_of}"


def groups(*hosts: tuple[str, int]) -> dict[str, Any]:
    return {
        "InstanceGroups": [
            {"InstanceGroupName": f"g{number}", "InstanceType": kind, "InstanceCount": count}
            for number, (kind, count) in enumerate(hosts)
        ]
    }


def preferences(*hosts: tuple[str, int]) -> dict[str, Any]:
    return {
        "InstancePreferences": [
            {"InstanceType": kind, "InstanceCount": count} for kind, count in hosts
        ]
    }


@pytest.mark.parametrize(
    ("config", "hosts", "cost"),
    [
        (groups(("ml.g5.xlarge", 2)), "2 × ml.g5.xlarge, torch_distributed", "4.00"),
        (groups(("ml.g5.xlarge", 1), ("ml.g5.12xlarge", 2)), "5 GPUs of both", "6.00"),
        (preferences(("ml.p5.48xlarge", 1), ("ml.g5.12xlarge", 2)), " or ", "4.00"),
    ],
)
def test_hosts_of_request_are_the_hosts_that_are_judged(good, config, hosts, cost):
    """instance_type and instance_count are then not sent."""
    job = good.replace(
        instance_type="ml.c5.xlarge",
        instance_count=1,
        price_per_hour=2.0,
        request={"ResourceConfig": config},
    )
    found, body = preflight.offline_checks(job, PROJECT)
    assert not has_errors(found), [str(each) for each in found]
    assert "-cu" in body["AlgorithmSpecification"]["TrainingImage"]
    assert body["HyperParameters"]["sagemaker_torch_distributed_enabled"] == "true"
    line = preflight.summary(job, PROJECT)
    assert hosts in line or ("GPUs" in hosts and "9 ranks" in line)
    assert f"cost    {cost} USD an hour" in price.cost(job)


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (groups(("ml.c5.xlarge", 1), ("ml.g5.xlarge", 1)), {}, "image"),  # no image fits both
        (preferences(("ml.p5.48xlarge", 1), ("ml.c5.xlarge", 1)), {}, "image"),
        (preferences(("ml.p3.16xlarge", 1), ("ml.p4d.24xlarge", 1)), {}, "image"),  # CUDA 13
        (groups(("ml.g5.xlarge", 2)), {"distribution": "none"}, "distribution"),
        (preferences(("ml.g5.48xlarge", 1)), {"distribution": "smddp"}, "distribution"),
    ],
)
def test_a_mistake_on_one_type_of_host_is_found(good, config, changes, key):
    job = good.replace(
        instance_type="ml.g5.xlarge",
        instance_count=1,
        request={"ResourceConfig": config},
        **changes,
    )
    found, _ = preflight.offline_checks(job, PROJECT)
    assert key in [each.key for each in found if each.level == "error"]


def test_a_count_for_all_preferences_is_sent(good):
    kinds = [{"InstanceType": "ml.p4d.24xlarge"}, {"InstanceType": "ml.p4de.24xlarge"}]
    config = {"ResourceConfig": {"InstancePreferences": kinds}}
    job = good.replace(instance_count=2, request=config)
    assert request.dry_run(job, PROJECT)["ResourceConfig"]["InstanceCount"] == 2
    assert "2 × ml.p4d.24xlarge or 2 × ml.p4de.24xlarge" in preflight.summary(job, PROJECT)
