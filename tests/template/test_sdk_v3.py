"""The drivers of the SageMaker SDK's version 3, which replace the toolkit, on two hosts.

ModelTrainer uses them if it gets a SourceCode. Each host runs version 3's own sm_train.sh.
"""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import two_hosts
from projects import Project, need
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.rehearsal import mpirun

VERSION = "1.27.0"
SCRIPT = "/opt/ml/input/data/sm_drivers/sm_train.sh"
CONTAINER = ["/bin/bash", "-c", f"chmod +x {SCRIPT} && {SCRIPT}"]  # v3's entry point and arguments
HOSTS = ("algo-1", "algo-2")  # v3 knows rank 0's host by this name
TORCHRUN = {"process_count_per_node": 2, "smp": None}
MPI = {"process_count_per_node": 2, "mpi_additional_options": None}
MPI_OF_ALL = {**MPI, "mpi_additional_options": ["-np", "4"]}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 3's package sagemaker.train."""
    need("/usr/sbin/sshd", "ip", "unshare", root=True)
    place = tmp_path_factory.mktemp("sdk")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", place, f"sagemaker-train=={VERSION}"], check=True)
    return place / "sagemaker/train"


def create_opt_ml(
    base: Path, sdk: Path, source: Path, distributed: dict[str, Any], options: dict[str, str]
) -> None:
    """The files of /opt/ml that SageMaker and ModelTrainer give a host."""
    for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
        (base / folder).mkdir(parents=True)
    drivers = base / "input/data/sm_drivers"
    subprocess.run(["cp", "-r", str(sdk / "container_drivers"), str(drivers)], check=True)
    source_archive.copy(source, base / "input/data/code")
    templates = runpy.run_path(str(sdk / "templates.py"))
    name = "Torchrun" if distributed is TORCHRUN else "MPI"
    driver = templates["EXEUCTE_DISTRIBUTED_DRIVER"].format(
        driver_name=name, driver_script=f"{name.lower()}_driver.py"
    )
    script = templates["TRAIN_SCRIPT_TEMPLATE"].format(
        working_dir="cd /opt/ml/input/data/code", install_requirements="", execute_driver=driver
    )
    (drivers / "sm_train.sh").write_text(script)
    resources = {
        "current_host": base.name,
        "hosts": HOSTS,
        "network_interface_name": "eth0",
        "current_instance_type": "ml.g5.12xlarge",
    }
    for path, content in {
        "input/config/resourceconfig.json": resources,
        "input/config/inputdataconfig.json": {},
        "input/config/hyperparameters.json": options,
        "input/data/sm_drivers/sourcecode.json": {"entry_script": "train.py"},
        "input/data/sm_drivers/distributed.json": distributed,
    }.items():
        (base / path).write_text(json.dumps(content))


def train(
    folder: Path,
    sdk: Path,
    project: Project,
    distributed: dict[str, Any],
    options: dict[str, str],
    stop_after: str = "",
) -> list[int]:
    """Exit codes of two hosts; their first processes get SIGTERM after a line of the log."""
    hosts = []
    for name in HOSTS:
        create_opt_ml(folder / name, sdk, project.path / "src", distributed, options)
        programs = f"{Path(sys.executable).parent}:{mpirun.OPEN_MPI}/bin"
        environment = {
            **mpirun.variables(),
            "NAME": name,
            "BASE": str(folder / name),
            "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": ":".join(map(str, mpirun.python_paths())),
            "TRAINING_JOB_NAME": "v3",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        hosts.append(environment)
    return two_hosts.run(folder, hosts, CONTAINER, stop_after)


@pytest.mark.long
@pytest.mark.parametrize("distributed", [TORCHRUN, MPI_OF_ALL], ids=["torchrun", "mpi"])
def test_a_driver_of_version_3_trains_on_two_hosts(
    sdk: Path, project: Project, words: Path, tmp_path: Path, distributed: dict[str, Any]
) -> None:
    """Options arrive. SageMaker's SIGTERM does not: only checkpoints survive a stop."""
    options = {"dataset": str(words), "max_steps": "30", "batch_size": "8", "log_every": "5"}
    codes = train(tmp_path, sdk, project, distributed, options, stop_after="step=5 ")
    log = (tmp_path / "log-0").read_text()
    assert codes == [0, 0], log[-3000:]
    assert "step=30 " in log and "\x1b" not in log
    for rank in range(4):
        assert re.search(rf"algo-{rank // 2 + 1} .* {rank}/4 +{rank % 2}/2 ", log)
    assert (tmp_path / "algo-1/model/model.safetensors").is_file()
    assert list((tmp_path / "algo-1/checkpoints").glob("*step000030*"))


@pytest.mark.long
@pytest.mark.parametrize(
    "distributed, expected", [(TORCHRUN, [1, 1]), (MPI_OF_ALL, [2, 0])], ids=["torchrun", "mpi"]
)
def test_a_wrong_option_fails_the_job_with_its_message(
    sdk: Path, project: Project, tmp_path: Path, distributed: dict[str, Any], expected: list[int]
) -> None:
    """Under MPI only the host that runs mpirun fails, which fails the job."""
    codes = train(tmp_path, sdk, project, distributed, {"epochs": "many"})
    assert codes == expected
    for host in HOSTS:
        assert "--epochs: found 'many'" in (tmp_path / host / "output/failure").read_text()


@pytest.mark.long
def test_the_mpi_driver_starts_the_processes_of_one_host_only(
    sdk: Path, project: Project, tmp_path: Path
) -> None:
    """The message says which option of MPI starts all processes."""
    codes = train(tmp_path, sdk, project, MPI, {})
    assert codes == [1, 0]
    failure = (tmp_path / "algo-1/output/failure").read_text()
    assert "found 2 processes; expected 4" in failure
    assert 'mpi_additional_options=["-np", "4"]' in failure
