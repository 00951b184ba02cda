"""From a command line and job.toml to a plan; a contradiction is an error with its hint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_rehearsal import JOB, ROOT, planned, stranger

from smlightning.errors import UserError
from smlightning_sagemaker.rehearsal import main
from smlightning_sagemaker.rehearsal import plan as plans
from smlightning_sagemaker.rehearsal.plan import Fault

CHANNEL = JOB + '[channels]\ntraining = "s3://bucket/data/"\n'
HEAVY = ("torch", "pytorch_lightning", "boto3", "botocore", "pydantic", "psutil", "sagemaker")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from smlightning_sagemaker.rehearsal import main\n"
        "try:\n    main(['--help'])\n"
        f"finally:\n    print(sorted(set({HEAVY}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0 and "--kill-rank" in ended.stdout, ended.stderr
    assert ended.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--host", "did you mean --hosts?"),
        ("--epochs=1", "options of train.py follow --"),
    ],
)
def test_an_unknown_option_gets_the_nearest_name(word, hint, capsys) -> None:
    assert main([word, "2"]) == 2
    said = capsys.readouterr().err
    assert f'rehearse does not know "{word}"' in said and hint in said


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--source-dir", "/nowhere"], ["/nowhere", "train.py"]),
        (["--job", "/nowhere.toml"], ["/nowhere.toml"]),
        (["--distribution", "none", "--processes", "2"], ["--processes 2", "--processes 1"]),
        (["--hosts", "2", "--processes", "2", "--kill-rank", "4"], ["--kill-rank 4", "0 to 3"]),
        (["--hosts", "2", "--stop-host", "3"], ["--stop-host 3", "1 to 2"]),
        (["--hosts", "0"], ["--hosts 0", "1 to 64"]),
        (["--batches", "-1"], ["--batches -1", "0 to"]),
        (["--timeout", "nan"], ["--timeout nan", "1 to 86400"]),
        (["--channel", "training=/nowhere"], ["training=/nowhere"]),
        (["--channel", "training"], ["--channel training=", "NAME=DIR"]),
        (["--channel", "=/"], ["--channel =/", "NAME=DIR"]),
        (["--json", "/nowhere/report.json"], ["--json /nowhere/report.json"]),
        (["--json", "/"], ["--json /"]),
        (["--keep", "/"], ["--keep /"]),
        (["--inherit", "NO_SUCH"], ["--inherit NO_SUCH"]),
        (["--", "epochs", "1"], ["'epochs'", "--name value"]),
        (["--", "--epochs"], ["'--epochs'"]),
        (["--source-dir", "src", "--", "--epoch", "1"], ["epoch", "epochs"]),
        (["--source-dir", "src", "--", "--lr", "fast"], ["lr", "fast"]),
    ],
)
def test_a_contradiction_is_an_error_with_its_cause(
    argv: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    source = [] if "--source-dir" in argv else ["--source-dir", str(stranger(tmp_path / "code"))]
    with pytest.raises(UserError) as raised:
        planned(tmp_path, *source, *argv)
    assert raised.value.problem and raised.value.hint
    assert [word for word in words if word not in str(raised.value)] == []


def test_a_source_folder_with_setup_py_is_an_error(tmp_path: Path) -> None:
    source = stranger(tmp_path / "code")
    (source / "setup.py").touch()
    with pytest.raises(UserError, match=r"setup\.py"):
        planned(tmp_path, "--source-dir", str(source))


def test_a_channel_needs_a_folder_here(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--channel training=DIR"):
        planned(tmp_path, job=CHANNEL)
    plan = planned(tmp_path, "--channel", f"training={tmp_path}", job=CHANNEL)
    assert plan.channels == {"training": tmp_path}


@pytest.mark.parametrize(
    "argv, size",
    [
        ([], (1, 1, "none")),
        (["--hosts", "2"], (2, 1, "torch_distributed")),
        (
            ["--hosts", "3", "--processes", "1", "--distribution", "pytorchddp"],
            (3, 1, "pytorchddp"),
        ),
    ],
)
def test_defaults_come_from_the_job(
    argv: list[str], size: tuple[int, int, str], tmp_path: Path
) -> None:
    job = JOB if not argv else JOB.replace("count = 1", "count = 4")
    plan = planned(tmp_path, *argv, job=job)
    assert (plan.hosts, plan.processes, plan.distribution) == size
    assert plan.instance_type == "ml.g5.xlarge" and plan.region == "eu-west-1"


def test_a_host_of_several_gpus_is_rehearsed_with_two_processes(tmp_path: Path) -> None:
    plan = planned(tmp_path, job=JOB.replace("g5.xlarge", "g5.12xlarge"))
    assert (plan.hosts, plan.processes, plan.distribution) == (1, 2, "torch_distributed")


@pytest.mark.parametrize(
    ("job", "rehearsed", "noted"),
    [
        (JOB, "ml.p4d.24xlarge", True),
        (JOB.replace("ml.g5.xlarge", "ml.p4de.24xlarge"), "ml.p4de.24xlarge", False),
        # The job itself cannot run: the rehearsal shows how it fails.
        (f'{JOB}distribution = "smddp"\n', "ml.g5.xlarge", False),
    ],
)
def test_smddp_is_rehearsed_on_an_instance_that_runs_it(
    job: str, rehearsed: str, noted: bool, tmp_path: Path
) -> None:
    plan = planned(tmp_path, "--hosts", "2", "--distribution", "smddp", job=job)
    assert plan.instance_type == rehearsed
    assert any(rehearsed in note for note in plan.notes) == noted


def test_a_rehearsal_of_groups_has_hosts_of_instance_type(tmp_path: Path) -> None:
    group = '{ InstanceGroupName = "a", InstanceType = "ml.g5.12xlarge", InstanceCount = 3 }'
    job = f"{JOB}[request]\nResourceConfig.InstanceGroups = [{group}]\n"
    plan = planned(tmp_path, "--hosts", "2", job=job)
    assert plan.request["ResourceConfig"]["InstanceType"] == "ml.g5.xlarge"
    assert any("InstanceGroups of [request] is not rehearsed" in note for note in plan.notes)


@pytest.mark.parametrize(
    "argv, fault",
    [
        ([], None),
        (["--fail-rank", "1"], Fault("fail-rank", 1)),
        (["--kill-rank", "0"], Fault("kill-rank", 0)),
        (["--stop-host", "2"], Fault("stop-host", 1)),
        (["--lose-host", "1"], Fault("lose-host", 0)),
    ],
)
def test_ranks_are_counted_from_0_and_hosts_from_1(
    argv: list[str], fault: Fault | None, tmp_path: Path
) -> None:
    plan = planned(tmp_path, "--hosts", "2", "--distribution", "torch_distributed", *argv)
    assert plan.fault == fault


@pytest.mark.parametrize(
    "argv, batches",
    [
        ([], 20),
        (["--stop-host", "1"], 200),
        (["--batches", "7"], 7),
        (["--", "--epochs", "1"], 0),
        (["--lose-host", "1", "--", "--max_steps", "9"], 0),
        (["--source-dir", "stranger", "--", "--trainer.max_epochs", "1"], 0),
    ],
)
def test_training_is_limited_unless_the_options_say_its_length(
    argv: list[str], batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger(tmp_path / "stranger")
    monkeypatch.chdir(tmp_path)
    assert planned(tmp_path, "--distribution", "torch_distributed", *argv).batches == batches


def test_other_code_gets_none_of_the_jobs_options_and_channels(tmp_path: Path) -> None:
    job = CHANNEL + "[hyperparameters]\nepochs = 3\n"
    source = ["--source-dir", str(stranger(tmp_path / "code"))]
    plan = planned(tmp_path, *source, "--", "--other", "1", job=job)
    assert "epochs" not in plan.request["HyperParameters"] and not plan.channels
    assert plan.request["HyperParameters"]["other"] == "1"


def test_no_secret_and_no_server_is_reached(tmp_path: Path) -> None:
    job = JOB + '[environment]\nMLFLOW_RUN = "x"\nKEPT = "y"\n'
    job += (
        'CA_REPOSITORY_ARN = "arn:x"\n[secrets]\nHF_TOKEN = "hub"\nWANDB_API_KEY = "team/wandb"\n'
    )
    plan = planned(tmp_path, job=job)
    assert plan.request["Environment"] == {"KEPT": "y"}
    assert "--inherit HF_TOKEN" in plan.notes[-1] and "WANDB_API_KEY" in plan.notes[-1]


def test_an_inherited_secret_reaches_the_hosts_apart_from_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOB + '[secrets]\nHF_TOKEN = "hub"\nWANDB_API_KEY = "team/wandb"\n'
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    plan = planned(tmp_path, "--inherit", "WANDB_API_KEY", "--inherit", "PATH", job=job)
    assert plan.secrets == ["WANDB_API_KEY"] and plan.inherit == ["PATH"]
    assert plan.request["Environment"] == {"SECRET_FOR_WANDB_API_KEY": "team/wandb"}
    assert "HF_TOKEN" in plan.notes[-1] and "WANDB_API_KEY" not in plan.notes[-1]


def test_hyperparameters_after_two_dashes() -> None:
    words = ["--epochs", "1", "--lr=1e-3", "--name", "true", "--text", "a b"]
    values = {"epochs": 1, "lr": "1e-3", "name": True, "text": "a b"}  # which 0.001 is not
    assert plans.hyperparameters(words) == values


@pytest.mark.parametrize("text", ["[3, 4]", '["a", "b"]', '{"a": 1}', "null", '"a"', "007"])
def test_another_value_after_two_dashes_stays_text(text: str, tmp_path: Path) -> None:
    assert plans.hyperparameters(["--kernels", text]) == {"kernels": text}
    source = ["--source-dir", str(stranger(tmp_path / "code"))]
    plan = planned(tmp_path, *source, "--", "--kernels", text)
    assert json.loads(plan.request["HyperParameters"]["kernels"]) == text


def test_a_path_after_two_dashes_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts start train.py in folders of their own."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    values = plans.hyperparameters(["--dataset", "./mine", "--model_name", "org/none"])
    assert values == {"dataset": str((tmp_path / "mine").resolve()), "model_name": "org/none"}
