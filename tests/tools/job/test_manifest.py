"""The manifest of `smlightning manifest`, checked against the operators' schemas."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import pytest
import test_corpora
import yaml

from small_job import GOOD, PROJECT, edited
from smlightning.errors import UserError
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import aws, images, instances
from smlightning_sagemaker.job import job as jobs
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.manifest import manifest
from smlightning_sagemaker.project import Project

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text())
)
IMAGE = "registry.example.com/training:1"
AWS_IMAGE = f"763104351884.dkr.ecr.us-east-1.amazonaws.com/{images.MPIRUN.gpu}"


def printed(job: Job, project: Project = PROJECT, **options: Any) -> dict[str, Any]:
    """The valid manifest, as it is read from YAML."""
    content = manifest(job, project, **{"volume": "checkpoints", "image": IMAGE, **options})
    text = yaml.safe_dump(content, sort_keys=False)
    assert "&id" not in text, "an alias of YAML"
    read: dict[str, Any] = yaml.safe_load(text)
    SCHEMA.validate(read)  # jsonschema.validate would check the schema itself each time
    return read


def pods(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The specification of each kind of pod."""
    spec = content["spec"]
    replicas = spec.get("replicaSpecs") or [*spec["pytorchReplicaSpecs"].values()]
    return [replica["template"]["spec"] for replica in replicas]


def test_pytorch_job_has_a_master_and_workers_on_whole_nodes():
    content = printed(GOOD)
    replicas = content["spec"]["pytorchReplicaSpecs"]
    assert {kind: replica["replicas"] for kind, replica in replicas.items()} == {
        "Master": 1,
        "Worker": 1,
    }
    assert content["spec"]["nprocPerNode"] == "8"
    assert content["spec"]["runPolicy"]["activeDeadlineSeconds"] == GOOD.max_run_s
    for pod in pods(content):
        (container,) = pod["containers"]
        assert container["command"][:2] == ["torchrun", "train.py"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4}
        assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
        assert {"name": "FI_PROVIDER", "value": "efa"} in container["env"]
        assert {"name": "NCCL_DEBUG", "value": "WARN"} in container["env"]


def test_hyperpod_job_starts_hyperpodrun_on_nodes_with_sagemakers_names():
    content = printed(GOOD, hyperpod=True)
    (replica,) = content["spec"]["replicaSpecs"]
    (pod,) = pods(content)
    (container,) = pod["containers"]
    start = container["command"][: container["command"].index("train.py")]
    assert start[:3] == ["hyperpodrun", "--nnodes=2", "--nproc-per-node=8"]
    assert replica["replicas"] == 2
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "ml.p4d.24xlarge"}
    assert {"name": "NNODES", "value": "2"} in container["env"]


@pytest.mark.parametrize("hyperpod", [False, True])
def test_one_cpu_host_is_one_pod_without_resources(hyperpod):
    job = GOOD.replace(instance_type="ml.c5.4xlarge", instance_count=1)
    content = printed(job, hyperpod=hyperpod)
    assert content["spec"]["nprocPerNode"] == "1"
    (pod,) = pods(content)
    assert pod["containers"][0]["resources"] == {"requests": {}, "limits": {}}


def test_secrets_are_keys_of_one_kubernetes_secret():
    stored = "team/hub"
    job = GOOD.replace(secrets={"WANDB_API_KEY": "team/wandb"}, hub_token_secret=stored)
    env = pods(printed(job))[0]["containers"][0]["env"]
    taken = {entry["name"]: entry["valueFrom"] for entry in env if "valueFrom" in entry}
    assert taken == {
        key: {"secretKeyRef": {"name": "language-id-secrets", "key": key}}
        for key in ("WANDB_API_KEY", "HF_TOKEN")
    }
    assert "team/" not in json.dumps(env)


@pytest.mark.parametrize(
    ("volume", "source"),
    [
        ("checkpoints", {"persistentVolumeClaim": {"claimName": "checkpoints"}}),
        ("/fsx/team", {"hostPath": {"path": "/fsx/team"}}),
    ],
)
def test_results_are_below_the_jobs_name_on_the_volume(volume, source):
    (pod, _) = pods(printed(GOOD.replace(name="Words-2"), volume=volume))
    assert {"name": "volume", **source} in pod["volumes"]
    (container,) = pod["containers"]
    mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "volume")
    assert f"--output_dir={mount['mountPath']}/words-2" in container["command"]


def test_kubernetes_expands_no_value():
    job = GOOD.replace(hyperparameters={"dataset": "$(HOME)"}, environment={"A": "$(HOME) $B"})
    (container,) = pods(printed(job))[0]["containers"]
    assert "--dataset=$$(HOME)" in container["command"]
    assert {"name": "A", "value": "$$(HOME) $$B"} in container["env"]


@pytest.mark.parametrize(
    ("changes", "options", "key"),
    [
        ({"distribution": "smddp"}, {}, "distribution"),
        ({"distribution": "pytorchddp"}, {}, "distribution"),
        ({"distribution": "none"}, {}, "distribution"),
        ({"instance_type": "ml.p6e-gb200.36xlarge"}, {}, "instance_type"),
        ({"instance_type": "ml.trn1.32xlarge"}, {}, "instance_type"),
        ({"environment": {"WANDB_API_KEY": "0a1b2c3d4e" * 4}}, {}, "environment.WANDB_API_KEY"),
        ({"name": "2words"}, {}, "name"),
        ({"name": "w" * 48}, {}, "name"),
        ({"channels": {"training": "s3://my-data/a/"}}, {}, "channels"),
        ({"spot": {"enabled": True}}, {}, "spot.enabled"),
        ({"request": {"RetryStrategy": {"MaximumRetryAttempts": 2}}}, {}, "RetryStrategy"),
        ({"checkpoint_s3": "s3://my-data/a/"}, {}, "checkpoint_s3"),
        ({"environment": {"RANK": "0"}}, {}, "RANK"),
        ({"hyperparameters": {"epoch": 1}}, {}, "hyperparameters.epoch"),
        ({"hyperparameters": {"dataset": "data/words.csv"}}, {}, "no pod has it"),
        ({"hyperparameters": {"dataset": "~/words"}}, {}, "no pod has it"),
        ({}, {"hyperpod": True, "image": ""}, "2.4 to 2.11"),
        ({"image": "mpirun", "instance_type": "ml.c5.xlarge"}, {"image": ""}, "image"),
        ({}, {"volume": "My_Claim"}, "My_Claim"),
    ],
)
def test_a_job_that_kubernetes_cannot_run_is_rejected(changes, options, key):
    with pytest.raises(UserError, match=key):
        printed(GOOD.replace(**changes), **options)


def test_hyperpod_accepts_an_aws_image_with_an_older_torch():
    content = printed(GOOD.replace(image="mpirun"), image="", hyperpod=True)
    assert pods(content)[0]["containers"][0]["image"] == AWS_IMAGE


def test_every_right_job_gives_a_valid_manifest_or_one_sentence(tmp_path, monkeypatch):
    """For Kubeflow and for HyperPod in turn."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # each project adds its src/
    valid = 0
    for number, case in enumerate(test_corpora.RIGHT):
        folder = tmp_path / str(number)
        folder.mkdir()
        project = test_corpora.project(case, folder)
        wanted = jobs.from_table(test_corpora.table(case, test_corpora.BASE), project)
        try:
            printed(wanted, project, hyperpod=number % 2 == 1)
        except UserError as problem:
            assert problem.cure, test_corpora.name(case)
        else:
            valid += 1
    assert valid > 40


def test_efa_interfaces_are_known_for_each_gpu_type_with_efa():
    kinds = aws.shape("TrainingInstanceType").enum
    with_efa = {kind for kind in kinds if instances.efa(kind) and instances.gpus(kind)}
    assert with_efa == set(filter(instances.efa_interfaces, kinds))
    assert instances.efa_interfaces("ml.g5.12xlarge") == 0


def test_command_prints_yaml_and_warns_about_an_image_without_code(tmp_path, capsys):
    file = edited(tmp_path / "job.toml", {})
    assert main(["manifest", "--volume", "checkpoints", "--job", str(file)]) == 0
    output = capsys.readouterr()
    SCHEMA.validate(yaml.safe_load(output.out))
    assert output.err.startswith("warning image")
    assert main(["manifest", "--volume", "a", "--image", IMAGE, "--job", str(file)]) == 0
    assert not capsys.readouterr().err


@pytest.mark.newest
def test_hyperpods_own_models_and_template_accept_the_manifest(tmp_path):
    """With the newest of AWS's packages for HyperPod."""
    packages = ["sagemaker-hyperpod", "hyperpod-pytorch-job-template"]
    install = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), *packages]
    subprocess.run([sys.executable, *install], check=True)
    content = printed(GOOD, hyperpod=True, volume="/fsx/team")
    models = tmp_path / "sagemaker" / "hyperpod" / "training" / "config"
    names = runpy.run_path(str(models / "hyperpod_pytorch_job_unified_config.py"))
    names["_HyperPodPytorchJob"].model_validate(content["spec"], by_name=True, extra="forbid")
    source = runpy.run_path(str(tmp_path / "hyperpod_pytorch_job_template/v1_1/template.py"))
    environment = jinja2.Environment(autoescape=False)  # noqa: S701
    template = environment.from_string(source["TEMPLATE_CONTENT"])
    (pod,) = pods(content)
    (container,) = pod["containers"]
    config = {
        "job_name": content["metadata"]["name"],
        "image": container["image"],
        "command": container["command"],
        "instance_type": GOOD.instance_type,
        "replica_count": 2,
        "tasks_per_node": "8",
        "accelerators": 8,
        "accelerators_limit": 8,
        "efa": 4,
        "efa_limit": 4,
        "max_retry": content["spec"]["runPolicy"]["jobMaxRetryCount"],
        "volume": [
            {"name": "volume", "type": "hostPath", "mount_path": "/mnt/volume", "path": "/fsx/team"}
        ],
    }
    theirs = yaml.safe_load(template.render(config))
    (their_pod,) = pods(theirs)
    (their_container,) = their_pod["containers"]
    assert theirs["apiVersion"] == content["apiVersion"] and theirs["kind"] == content["kind"]
    assert theirs["spec"]["nprocPerNode"] == content["spec"]["nprocPerNode"]
    assert their_pod["nodeSelector"] == pod["nodeSelector"]
    for key in ("image", "command", "resources"):
        assert their_container[key] == container[key]
    assert their_pod["volumes"][0] in pod["volumes"]
