"""src/ as SageMaker gets it: train.py, requirements.txt, and nothing else of ours.

A new environment takes the container's place: it has the image's packages (torch, and what the
lock pins), without smlightning. SageMaker's own toolkit installs requirements.txt there and trains.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from projects import Project

SITE = Path(sysconfig.get_paths()["purelib"])


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_environment(tmp_path_factory.mktemp("container"))


def new_environment(folder: Path) -> Path:
    """The Python of a new environment with everything but our packages."""
    (folder / "packages").mkdir(parents=True)
    for entry in SITE.iterdir():
        if not entry.name.startswith(("smlightning", "__editable__")):
            (folder / "packages" / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    purelib = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.check_output([python, "-c", purelib], text=True).strip())
    (site / "image.pth").write_text(f"{folder / 'packages'}\n", encoding="utf-8")
    return python


def run(python: Path, *words: str | Path, cwd: Path, **variables: str) -> str:
    environment = {
        "PATH": f"{python.parent}{os.pathsep}{os.defpath}",
        "HOME": str(cwd),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PIP_NO_INDEX": "1",  # all that the lock pins is there; only the wheel is installed
        **variables,
    }
    ended = subprocess.run(
        [python, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def copy_src(project: Project, into: Path) -> Path:
    return Path(shutil.copytree(project.path / "src", into))


@pytest.mark.long
def test_the_toolkit_installs_the_requirements_and_trains(
    project: Project, words: Path, container: Path, tmp_path: Path
) -> None:
    base = tmp_path / "ml"
    code = copy_src(project, base / "code")
    for name in ("input/config", "input/data/training", "model", "output/data"):
        (base / name).mkdir(parents=True)
    shutil.copy(words, base / "input/data/training")
    group = {"instance_group_name": "all", "instance_type": "ml.m5.large", "hosts": ["127.0.0.1"]}
    files = {
        "hyperparameters": {
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": json.dumps(str(code)),
            "sagemaker_region": '"us-east-1"',
            "dataset": '"training"',
            "max_steps": "3",
        },
        "resourceconfig": {
            "current_host": "127.0.0.1",
            "hosts": ["127.0.0.1"],
            "network_interface_name": "lo",
            "current_instance_type": "ml.m5.large",
            "current_group_name": "all",
            "instance_groups": [group],
        },
        "inputdataconfig": {"training": {"TrainingInputMode": "File"}},
    }
    for name, content in files.items():
        (base / "input/config" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    absent = "import importlib.util as u; raise SystemExit(bool(u.find_spec('smlightning')))"
    run(container, "-c", absent, cwd=tmp_path)
    run(
        container,
        "-c",
        "from sagemaker_training.cli.train import main; main()",
        cwd=tmp_path,
        SAGEMAKER_BASE_DIR=str(base),
        SAGEMAKER_TRAINING_MODULE="sagemaker_pytorch_container.training:main",
        AWS_REGION="us-east-1",
    )
    assert (base / "output/success").exists()
    where = run(container, "-c", "import smlightning; print(smlightning.__file__)", cwd=tmp_path)
    assert where.startswith(str(container.parents[1]))
    said = run(container, code / "predict.py", "--model_dir", base / "model", "αβγ", cwd=tmp_path)
    assert said.startswith("αβγ\t")


@pytest.mark.long
def test_a_dockerfiles_installation_trains_under_torchrun(
    project: Project, words: Path, container: Path, tmp_path: Path
) -> None:
    """COPY src .; RUN pip install -r requirements.txt; torchrun train.py."""
    code = copy_src(project, tmp_path / "code")
    install = ("-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps")
    run(container, *install, "--requirement", "requirements.txt", cwd=code, PIP_NO_INDEX="")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    options = ("--dataset", words, "--max_steps", "3", "--output_dir", tmp_path / "out")
    run(container, *torchrun, "train.py", *options, cwd=code)
    model = tmp_path / "out" / "model"
    assert "αβγ\t" in run(container, "predict.py", "--model_dir", model, "αβγ", cwd=code)
