"""The object of launch.ipynb, where it needs no kernel; tests/template/test_notebook.py has one."""

from pathlib import Path

import pytest

from small_job import PROJECT, edited
from smlightning.errors import UserError
from smlightning_sagemaker import notebook
from smlightning_sagemaker.job.job import JobError
from smlightning_sagemaker.notebook import Launch


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a project whose job has data and an option."""
    changes = {"hyperparameters.dataset": "training", "channels.training": "s3://my-bucket/x/"}
    edited(tmp_path / "job.toml", changes)
    (tmp_path / "src").symlink_to(PROJECT.src)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_change_of_one_entry_keeps_the_others(project: Path) -> None:
    launch = Launch(hyperparameters={"epochs": 2}, spot={"enabled": True}, max_run_s=60)
    assert launch.job.hyperparameters == {"dataset": "training", "epochs": 2}
    assert launch.job.spot.enabled and launch.job.spot.max_wait_s == 28_800
    lines = repr(launch).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("# of this run")] == [
        "max_run_s",
        "hyperparameters.epochs",
        "spot.enabled",
    ]
    assert Launch().job.hyperparameters == {"dataset": "training"}


def test_one_accepted_key_needs_no_list(project: Path) -> None:
    with pytest.raises(UserError, match="rehearsal has not passed"):
        Launch(accept="preflight").may_send()


def test_a_wrong_change_is_a_sentence(project: Path) -> None:
    with pytest.raises(JobError, match="did you mean instance_type"):
        Launch(instance_tpye="ml.g5.xlarge")


def test_the_rehearsal_simulates_the_changed_job(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the values as a file, and the job passes only if its exit status is 0."""
    jobs = []

    def run(command: list[str], folder: Path) -> int:
        file = command[command.index("--job") + 1]
        jobs.append(notebook.load(file, launch.project))
        return int(folder != project)

    monkeypatch.setattr(notebook, "run_and_print", run)
    launch = Launch(instance_count=4, hyperparameters={"epochs": 2})
    launch.rehearse()
    assert jobs == [launch.job]
    monkeypatch.setattr(notebook, "run_and_print", lambda *_: 2)  # it could not start
    with pytest.raises(UserError, match=r"exit status 2.*rehearse\(\"--channel\", \"training=DIR"):
        launch.rehearse()
    with pytest.raises(UserError, match=r"exit status 2.*accept=\[\"rehearsal\"\]"):
        launch.rehearse("--channel", "training=data")
    with pytest.raises(UserError, match="preflight has not passed"):
        launch.may_send()
