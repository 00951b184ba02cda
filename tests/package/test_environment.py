"""The template's tests see what tests/isolation.py lists of this machine, and nothing else of it; a
project's tests see all that is no job's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rank_training
from isolation import listed
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
import isolation
os.umask(0o077)
isolation.enter()
variables = dict(os.environ)
isolation.enter()
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
    variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[1])
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


def test_the_way_to_packages_is_kept_as_it_is_for_a_job() -> None:
    way = {"PIP_INDEX_URL": "https://x.y/simple", "PIP_KEYRING_PROVIDER": "subprocess"}
    links = {"PIP_FIND_LINKS": "/wheels"}
    kept = listed({**way, **links, "PIP_CONSTRAINT": "/dev/null"})
    assert {name: value for name, value in kept.items() if name.startswith("PIP_")} == {
        **way,
        "PIP_CONFIG_FILE": os.devnull,
    }
    without_index = {**links, "PIP_NO_INDEX": "1"}
    assert listed(without_index).items() >= without_index.items()


OWNERS_CONFTEST = """
import os
pytest_plugins = ["smlightning.testing.plugin"]
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


def test_ranks_of_tests_see_no_gpu_and_no_variable_of_a_job(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SM_HOSTS", '["a"]')
        patch.setenv("RANK", "1")
        [rank] = processes.run_ranks(rank_training.record_environment, tmp_path / "run", 1)
    assert rank["CUDA_VISIBLE_DEVICES"] == ""
    assert not rank.keys() & {"SM_HOSTS", "RANK"}
