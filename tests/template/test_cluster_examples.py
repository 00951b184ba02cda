"""The files of examples/cluster: the manifest fits Kubeflow's schema, and train.py takes it.

test_slurm.py runs job.sh.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from projects import TEMPLATE, Project
from smlightning_sagemaker.testing.processes import free_port

SCHEMA = jsonschema.Draft202012Validator(
    json.loads(Path(__file__).with_name("kubernetes_schema.json").read_text())
)


def manifest() -> Any:
    return yaml.safe_load((TEMPLATE / "examples/cluster/pytorchjob.yaml").read_text())


def test_the_manifest_fits_kubeflows_schema() -> None:
    SCHEMA.validate(manifest())


def test_the_schema_rejects_a_misspelt_command() -> None:
    wrong = manifest()
    (container,) = wrong["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["comand"] = container.pop("command")
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(wrong)


@pytest.mark.long
def test_its_command_trains(project: Project, words: Path, tmp_path: Path) -> None:
    """torchrun with the operator's variables for one host, in a folder with the content of src/."""
    pods = manifest()["spec"]["pytorchReplicaSpecs"].values()
    (container,) = next(iter(pods))["template"]["spec"]["containers"]
    program, script, output = container["command"]
    assert (program, script) == ("torchrun", "train.py")
    assert output.startswith("--output_dir=/mnt/volume/")
    operators = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_MASTER_PORT": str(free_port())}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    command = ["python", "-m", "torch.distributed.run", f"src/{script}", "--dataset", str(words)]
    command += ["--output_dir", str(tmp_path), "--max_steps", "2"]
    said = project.run(*command, **operators, **variables).stdout
    assert "test/accuracy" in said
    dockerfile = (TEMPLATE / "examples/cluster/Dockerfile").read_text()
    assert container["workingDir"] in dockerfile and "requirements.txt" in dockerfile
