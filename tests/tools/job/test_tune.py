"""The ranges of a search, and its request."""

import re

import pytest

from small_job import GOOD, PROJECT, ROLE, edited
from smlightning_sagemaker import findings
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import request, tune
from smlightning_sagemaker.job.job import Job, Spot, Tune
from smlightning_sagemaker.preflight import requirements

TUNE = {
    "ranges": {
        "lr": {"min": 1e-4, "max": 1e-2, "scale": "Logarithmic"},
        "max_length": {"min": 16, "max": 64},
    }
    | {"precision": ["32-true", "bf16-mixed"]}
}


@pytest.fixture
def good() -> Job:
    return GOOD


def test_the_tuning_request_searches_the_ranges_with_the_jobs_own_estimator(good):
    wanted = good.replace(
        tune=Tune(max_jobs=9, parallel=3, **TUNE), spot=Spot(enabled=True, max_wait_s=90_000)
    )
    found, made = tune.judged(wanted, projects.find(), [])
    assert [each.key for each in found] == ["spot", "hyperparameters.lr"]  # warnings
    assert re.fullmatch(r"language-id-\d{6}-\d{6}", made["HyperParameterTuningJobName"])
    search, own = made["HyperParameterTuningJobConfig"], made["TrainingJobDefinition"]
    assert search["HyperParameterTuningJobObjective"] == {
        "Type": "Maximize",
        "MetricName": "val/accuracy",
    }
    assert search["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 9, "MaxParallelTrainingJobs": 3}
    assert {
        kind: [r["Name"] for r in ranges] for kind, ranges in search["ParameterRanges"].items()
    } == {
        "ContinuousParameterRanges": ["lr"],
        "IntegerParameterRanges": ["max_length"],
        "CategoricalParameterRanges": ["precision"],
    }
    single = request.dry_run(wanted, PROJECT)
    static = own["StaticHyperParameters"].items() - single["HyperParameters"].items()
    elsewhere = {"sagemaker_job_name", "sagemaker_submit_directory"}
    assert {key for key, _ in static} - elsewhere == {
        "sagemaker_estimator_class_name",
        "sagemaker_estimator_module",
    }
    assert single["HyperParameters"].keys() - own["StaticHyperParameters"].keys() == {"lr"}
    assert own["AlgorithmSpecification"].items() <= single["AlgorithmSpecification"].items()
    assert (
        "CheckpointConfig" not in own
        and own["EnableManagedSpotTraining"]
        and made["Tags"] == single["Tags"]
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "tune.ranges: is empty"),
        ({"tune.ranges.learning": [1, 2]}, "tune.ranges.learning: train.py has no such option"),
        ({"tune.ranges.lr": {"min": -1.0, "max": 1.0}}, "tune.ranges.lr: found '-1.0'"),
        ({"tune.ranges.lr": {"min": 1.0}}, "tune.ranges.lr: "),
        ({"tune.ranges.lr": {"min": 1.0, "max": 2.0, "scale": "log"}}, "tune.ranges.lr: "),
        ({"tune.ranges.precision": ["8-bit"]}, "tune.ranges.precision: found '8-bit'"),
        ({"tune.ranges.epochs": 3}, "tune.ranges.epochs: "),
        ({"tune.ranges.precision": {"min": 1, "max": 2}}, "tune.ranges.precision: found '1'"),
        (
            {"tune.ranges.lr": [0.1], "request.ResourceConfig": {"TrainingPlanArn": "arn:x"}},
            "request.ResourceConfig.TrainingPlanArn: is not possible in a tuning job",
        ),
        ({"tune.ranges.lr": [0.1], "image": "nonsense"}, 'image: "nonsense" is neither'),
    ],
)
def test_a_wrong_range_is_an_error_with_its_key(tmp_path, capsys, changes, line):
    path = edited(tmp_path / "job.toml", changes)
    assert main(["tune", "--dry-run", "--job", str(path)]) == 1
    said = capsys.readouterr()
    assert re.search(f"(?m)^error(:|  ) {line}", said.err) and not said.out, said.err


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        ({"model_name": ["prajjwal1/bert-tiny"], "lora_rank": [4, 8, 16]}, 0),
        ({"lora_rank": {"min": 4, "max": 16}}, 1),
    ],
)
def test_the_first_values_of_a_search_must_go_together(tmp_path, capsys, ranges, status):
    """Those of the job do not: its network has no activations to recompute."""
    changes = {"hyperparameters.gradient_checkpointing": True}
    changes |= {f"tune.ranges.{option}": given for option, given in ranges.items()}
    path = edited(tmp_path / "job.toml", changes)
    assert main(["tune", "--dry-run", "--job", str(path)]) == status
    said = capsys.readouterr().err
    assert ("error   hyperparameters: --gradient_checkpointing and" in said) == bool(status), said
    assert main(["submit", "--dry-run", "--job", str(path)]) == 1
    assert "error   hyperparameters: --gradient" in capsys.readouterr().err


def test_preflight_checks_the_ranges_too(tmp_path, capsys, monkeypatch):
    nothing = requirements.Resolution([], [])
    monkeypatch.setattr(requirements, "resolve", lambda *_: nothing)  # it asks an index
    changes = {"tune.ranges.lr": {"min": 1e-4, "max": 1e-2}, "tune.ranges.epoch": [1]}
    path = edited(tmp_path / "job.toml", {"hyperparameters.lr": 0.1, **changes})
    assert main(["preflight", "--offline", "--job", str(path)]) == 1
    said = capsys.readouterr().out
    assert "warning hyperparameters.lr: [tune.ranges] has it too" in said
    assert "error   tune.ranges.epoch: train.py has no such option; did you mean epochs?" in said


CONFIG = "create.HyperParameterTuningJob.HyperParameterTuningJobConfig"


def test_a_search_has_the_members_of_create():
    """Strategy, early stopping, a limit of time, and a warm start."""
    parents = [{"HyperParameterTuningJobName": "before"}]
    warm = {"WarmStartType": "IdenticalDataAndAlgorithm", "ParentHyperParameterTuningJobs": parents}
    config = {
        "Strategy": "Random",
        "TrainingJobEarlyStoppingType": "Auto",
        "ResourceLimits": {"MaxRuntimeInSeconds": 3600},
    }
    own = {"HyperParameterTuningJobConfig": config, "WarmStartConfig": warm}
    wanted = GOOD.replace(tune=Tune(max_jobs=9, **TUNE), create={"HyperParameterTuningJob": own})
    found, made = tune.judged(wanted, projects.find(), [])
    assert not findings.has_errors(found)
    search = made["HyperParameterTuningJobConfig"]
    assert (search["Strategy"], search["TrainingJobEarlyStoppingType"]) == ("Random", "Auto")
    assert search["ResourceLimits"]["MaxRuntimeInSeconds"] == 3600
    assert search["ResourceLimits"]["MaxNumberOfTrainingJobs"] == 9
    assert made["WarmStartConfig"] == warm
    without, plain = tune.judged(wanted.replace(create={}), projects.find(), [])
    assert without == found and "WarmStartConfig" not in plain
    assert plain["HyperParameterTuningJobConfig"]["Strategy"] == "Bayesian"


@pytest.mark.parametrize(
    ("given", "key", "cure"),
    [
        (
            {"HyperParameterTuningJobConfig": {"Strategy": "Hyperbond"}},
            f"{CONFIG}.Strategy",
            "did you mean Hyperband?",
        ),
        (
            {"HyperParameterTuningJobConfig": {"Stategy": "Random"}},
            f"{CONFIG}.Stategy",
            "did you mean Strategy?",
        ),
        (
            {"HyperParameterTuningJobConfig": {"ResourceLimits": {"MaxNumberOfTrainingJobs": 3}}},
            f"{CONFIG}.ResourceLimits.MaxNumberOfTrainingJobs",
            "remove it",
        ),
        ({"TrainingJobDefinition": {"RoleArn": ROLE}}, "create.HyperParameterTuningJob", "remove"),
        ({"WarmStartConfig": {"WarmStartType": "TransferLearning"}}, "create.", "add it"),
        ({"WarmStartConfig": 3}, "create.HyperParameterTuningJob.WarmStartConfig", "correct its"),
    ],
)
def test_a_wrong_member_of_a_search_is_an_error_with_its_key(given, key, cure):
    wanted = GOOD.replace(tune=Tune(**TUNE), create={"HyperParameterTuningJob": given})
    found, made = tune.judged(wanted, projects.find(), [])
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.key.startswith(key) and wrong.cure.startswith(cure) and made is None
