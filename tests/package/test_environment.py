"""Tests see what smlightning.testing.environment lists of this machine, and nothing else of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rank_training
from smlightning.testing import processes
from smlightning.testing.environment import of_tests

USERS = {
    "AWS_PROFILE": "mine",
    "AWS_DEFAULT_REGION": "eu-west-9",
    "HF_HOME": "/dev/null",
    "GIT_DIR": "/dev/null",
    "LC_ALL": "tr_TR.UTF-8",
    "LANGUAGE": "tr",
    "PIP_CONSTRAINT": "/dev/null",
    "PIP_FIND_LINKS": "/dev/null",
    "PYTHONWARNINGS": "error",
    "RANK": "1",
    "SM_HOSTS": '["a"]',
    "COLUMNS": "20",
    "FORCE_COLOR": "1",
    "XDG_CONFIG_HOME": "/dev/null",
}
SHOW = """
import json, os, pathlib
from smlightning.testing import environment
os.umask(0o077)
environment.enter()
variables = dict(os.environ)
environment.enter()
assert variables == dict(os.environ)
if not (child := os.fork()):
    raise SystemExit  # its end leaves the home
os.waitpid(child, 0)
home = pathlib.Path.home()
(home / "file").touch()
print(json.dumps({"variables": variables, "mode": oct((home / "file").stat().st_mode)}))
"""


def test_a_users_variables_home_and_umask_do_not_reach_tests() -> None:
    variables = {**os.environ, **USERS, "HOME": "/proc", "PATH": "/dev/null:/usr/bin:/bin"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOW],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(ended.stdout)
    inside = shown["variables"]
    assert not inside.keys() & USERS.keys()
    assert inside["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert shown["mode"] == "0o100644"
    assert not Path(inside["HOME"]).exists()  # removed at the end


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


def test_ranks_of_tests_see_no_gpu_and_no_variable_of_the_user(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in USERS.items():
            patch.setenv(name, value)
        [rank] = processes.run_ranks(rank_training.record_environment, tmp_path / "run", 1)
    assert rank["CUDA_VISIBLE_DEVICES"] == ""
    assert not rank.keys() & USERS.keys()
