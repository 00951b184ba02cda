"""Folders, files, code and variables of the hosts, as SageMaker gives them by the request."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_rehearsal import small_plan, small_request

import checkout
from smlightning import hub
from smlightning.options import decode
from smlightning_sagemaker.rehearsal import checks
from smlightning_sagemaker.rehearsal.environment import container_environment
from smlightning_sagemaker.rehearsal.evidence import Attempt
from smlightning_sagemaker.rehearsal.hosts import Host, create_hosts, with_copied_channels
from smlightning_sagemaker.rehearsal.plan import Plan

SHELL = {
    "PATH": "/bin",
    "RANK": "of this shell",
    "SM_HOSTS": "of this shell",
    "PYTHONPATH": "of this shell",
    "MASTER_PORT": "of this shell",
    "HF_TOKEN": "of this shell",
    "HF_HOME": "of this shell",
    "FORCE_COLOR": "of this shell",
    "https_proxy": "of this shell",
    "HOME": "of this shell",
}


def configuration(host: Host) -> dict[str, dict[str, object]]:
    folder = host.base / "input/config"
    return {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}


def variables(plan: Plan, run: Path, host: Host) -> dict[str, str]:
    return container_environment(plan, run, host, shell=SHELL)


def test_the_request_is_followed(tmp_path: Path) -> None:
    """The hosts get its hyperparameters, instance, environment and input modes."""
    request = {
        "HyperParameters": {"epochs": "7", "text": '"a b"', "sagemaker_region": '"eu-west-1"'},
        "Environment": {"NCCL_DEBUG": "INFO"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge"},
        "AlgorithmSpecification": {},
        "InputDataConfig": [{"ChannelName": "training", "InputMode": "FastFile"}],
    }
    data = tmp_path / "data"
    data.mkdir()
    channels = {"training": data, "other": data}
    plan = small_plan(1, 1, request=request, channels=channels)
    [host] = create_hosts(plan, tmp_path / "run")
    written = configuration(host)
    code = {"sagemaker_submit_directory": json.dumps(str(host.base / "code"))}
    assert written["hyperparameters"] == {**request["HyperParameters"], **code}
    assert written["resourceconfig"]["current_instance_type"] == "ml.g5.xlarge"
    modes = {name: each["TrainingInputMode"] for name, each in written["inputdataconfig"].items()}
    assert modes == {"training": "FastFile", "other": "File"}
    of_host = variables(plan, tmp_path / "run", host)
    assert of_host["NCCL_DEBUG"] == "INFO" and of_host["AWS_REGION"] == "eu-west-1"


def test_local_folders_replace_those_of_channels_in_options_and_variables(
    tmp_path: Path,
) -> None:
    """They are equal on every host and after a restart, since options are compared."""
    data = tmp_path / 'a"b'
    data.mkdir()
    place = "/opt/ml/input/data/training"
    paths = {
        place: f"{data}",
        f"{place}/b": f"{data}/b",
        f"{place}2/a.csv": f"{tmp_path}/more/a.csv",
        "/opt/ml/model": "/opt/ml/model",
    }
    request = small_request(2, "torch_distributed")
    request["HyperParameters"].update({path: json.dumps(path) for path in paths})
    request["HyperParameters"]["list"] = json.dumps(json.dumps([f"{place}2"]))
    request["Environment"] = {"WORDS": f"{place}/b", "PLACES": f"{place}:{place}2/a:{place}-3"}
    (tmp_path / "more").mkdir()
    channels = {"training": data, "training2": tmp_path / "more"}
    plan = small_plan(2, 1, channels=channels, request=request)
    for host in create_hosts(plan, tmp_path / "run"):
        of_host = variables(plan, tmp_path / "run", host)
        assert of_host["WORDS"] == f"{data}/b"
        assert of_host["PLACES"] == f"{data}:{tmp_path}/more/a:{place}-3"
        options = configuration(host)["hyperparameters"]
        texts = {name: decode(json.loads(options[name])) for name in (*paths, "list")}
        assert json.loads(texts.pop("list")) == [str(tmp_path / "more")]
        assert texts == paths


def test_a_channel_is_a_copy_and_read_only_where_sagemaker_mounts_it_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1")
    file_system = {"FileSystemDataSource": {"FileSystemAccessMode": "ro"}}
    request = small_request(1, "none")
    request["InputDataConfig"] = [
        {"ChannelName": "fast", "InputMode": "FastFile"},
        {"ChannelName": "shared", "DataSource": file_system},
    ]
    channels = dict.fromkeys(("fast", "shared", "files"), data)
    plan = small_plan(1, 1, "none", request=request, channels=channels)
    plan = with_copied_channels(plan, tmp_path / "channels")
    [host] = create_hosts(plan, tmp_path / "run")
    folder = host.base / "input/data"
    for name in channels:
        (folder / name / "a.csv").write_text("2")
        (folder / name / "b.csv").write_text("2")
    assert [path.read_text() for path in data.iterdir()] == ["1"]
    mounts = variables(plan, tmp_path / "run", host)["REHEARSAL_READ_ONLY"].split(":")
    own = [str(folder / name) for name in ("fast", "shared")]
    assert [mount for mount in mounts if mount.startswith(str(folder))] == own


def with_channels(folder: Path, hosts: int) -> Plan:
    """A plan with a channel "files" and a read-only one, "fast"; both hold a.csv."""
    data = folder / "data"
    data.mkdir()
    (data / "a.csv").write_text("1")
    (data / "gone.csv").symlink_to(folder / "absent")
    request = small_request(hosts, "torch_distributed")
    request["InputDataConfig"] = [{"ChannelName": "fast", "InputMode": "FastFile"}]
    channels = {"fast": data, "files": data}
    return small_plan(hosts, 1, request=request, channels=channels)


def test_hosts_and_attempts_share_no_file_that_a_script_may_change(tmp_path: Path) -> None:
    given = with_channels(tmp_path, 2)
    plan = with_copied_channels(given, tmp_path / "channels")
    first, second = create_hosts(plan, tmp_path / "run")
    file = "input/data/files/a.csv"
    (first.base / file).write_text("2")
    assert (second.base / file).read_text() == "1"
    (plan.channels["files"] / "a.csv").write_text("3")
    plan.channels["files"].chmod(0o555)
    again = with_copied_channels(given, tmp_path / "channels")
    assert again == plan
    restarted, _ = create_hosts(again, tmp_path / "restarted")
    assert (restarted.base / file).read_text() == "1"
    fast = [host.base / "input/data/fast/a.csv" for host in (first, second, restarted)]
    assert len({path.stat().st_ino for path in fast}) == 1, "a copy where a link will do"


@pytest.mark.parametrize("by_option", [False, True])
def test_a_script_cannot_write_into_a_channel_of_fast_file(by_option: bool, tmp_path: Path) -> None:
    run, script = tmp_path / "run", "import sys, torch; open(sys.argv[1], 'w').close()"
    plan = with_copied_channels(with_channels(tmp_path, 1), tmp_path / "channels")
    [host] = create_hosts(plan, run)
    ended, files = {}, {}
    for name, copy in plan.channels.items():
        files[name] = (copy if by_option else host.base / "input/data" / name) / "a.csv"
        ended[name] = subprocess.run(
            [sys.executable, "-c", script, str(files[name])],
            env=container_environment(plan, run, host),
            capture_output=True,
            text=True,
        )
    assert ended["files"].returncode == 0, ended["files"].stderr
    assert files["files"].read_text() == "" and files["fast"].read_text() == "1"
    *_, cause = ended["fast"].stderr.splitlines()
    assert cause.startswith("OSError: [Errno 30]") and str(files["fast"]) in cause
    conclusion = checks.Conclusion(checks.FAILED, cause)
    assert "SM_MODEL_DIR" in checks.with_hint("hosts-succeeded", conclusion).hint


@pytest.mark.parametrize("file", ["a.csv", "new/b.parquet"])
def test_what_another_program_writes_into_a_channel_of_fast_file_is_a_failure(
    file: str, tmp_path: Path
) -> None:
    """As pyarrow does, whose files Python does not see."""
    plan = with_copied_channels(with_channels(tmp_path, 1), tmp_path / "channels")
    [host] = create_hosts(plan, tmp_path / "run")
    host.exit_code = 0
    attempt = Attempt(tmp_path / "run", [host], [])
    assert checks.hosts_succeeded(plan, attempt).verdict == checks.PASSED
    for name in plan.channels:
        path = host.base / "input/data" / name / file
        path.parent.mkdir(exist_ok=True)
        subprocess.run(["sh", "-c", f"sleep 0.1; echo 2 > {path}"], check=True)
    conclusion = checks.hosts_succeeded(plan, attempt)
    assert conclusion.verdict == checks.FAILED and "wrote into fast" in conclusion.detail
    assert "SM_MODEL_DIR" in checks.with_hint("hosts-succeeded", conclusion).hint


def test_the_environment_is_the_containers(tmp_path: Path) -> None:
    """From this shell come only variables of the network and those of the plan."""
    plan = small_plan(2, 2)
    host = create_hosts(plan, tmp_path)[1]
    of_host = variables(plan, tmp_path, host)
    inherited = {name for name, value in of_host.items() if value == "of this shell"}
    assert inherited == {"https_proxy"}
    assert of_host["PYTHONPATH"] == f"{tmp_path / 'stubs'}:{checkout.PACKAGES[0]}"
    assert of_host["CUDA_VISIBLE_DEVICES"] == ""
    assert of_host["HOME"] == str(host.base / "home") and not list((host.base / "home").iterdir())
    of_host = variables(replace(plan, inherit=["HF_HOME", "HOME"]), tmp_path, host)
    assert {of_host["HF_HOME"], of_host["HOME"]} == {"of this shell"}


def test_only_the_first_process_of_a_host_reads_its_secrets(tmp_path: Path) -> None:
    request = small_request(1, "none", secrets={"DB": "ssm:/team/db", "KEY": "team/key:x"})
    plan = small_plan(1, 1, request=request, secrets=["DB", "KEY"])
    [host] = create_hosts(plan, tmp_path)
    shell = {"DB": "first", "KEY": "second"}
    of_host = container_environment(plan, tmp_path, host, shell)
    assert not {"DB", "KEY"} & of_host.keys()
    other = dict(of_host)
    hub.sign_in(0, of_host)
    hub.sign_in(1, other)
    assert (of_host["DB"], of_host["KEY"]) == ("first", "second")
    assert not {"DB", "KEY"} & other.keys()
