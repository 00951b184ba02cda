"""A project's tests keep the owner's variables, except those of a job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smlightning_sagemaker.testing.environment import of_tests


@pytest.mark.parametrize(
    "variables, visible",
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "USE_GPUS": "1"}, "0,1"),
        ({"USE_GPUS": "1"}, None),
    ],
)
def test_gpus_are_hidden_unless_tests_may_use_them(
    variables: dict[str, str], visible: str | None
) -> None:
    assert of_tests(variables).get("CUDA_VISIBLE_DEVICES") == visible


OWNERS_CONFTEST = """
import os
pytest_plugins = ["smlightning_sagemaker.testing.plugin"]
os.environ["OF_CONFTEST"] = "1"
"""
OWNERS_TEST = """
import json, os
def test_environment():
    with open(os.environ["SHOWN"], "w") as file:
        json.dump(dict(os.environ), file)
"""


def test_a_projects_tests_keep_the_owners_variables_and_lose_those_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(OWNERS_CONFTEST)
    (tmp_path / "test_owner.py").write_text(OWNERS_TEST)
    (tmp_path / "pytest.ini").touch()
    owners = {"HF_HOME": "/hub", "HF_TOKEN": "hf_x", "HOME": "/owner", "AWS_PROFILE": "mine"}
    job = {"RANK": "1", "SM_HOSTS": "[]", "OMPI_COMM_WORLD_RANK": "1", "MASTER_ADDR": "a"}
    shown = tmp_path / "shown.json"
    variables = {**os.environ, **owners, **job, "SHOWN": str(shown), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True)
    inside = json.loads(shown.read_text())
    assert inside.items() >= {**owners, "OF_CONFTEST": "1", "CUDA_VISIBLE_DEVICES": ""}.items()
    assert inside["OMP_NUM_THREADS"] == "1" and not inside.keys() & job.keys()
