"""job.toml as it is read: every mistake of the file at once, each with its key and its hint."""

from pathlib import Path
from typing import Any

import pytest

from small_job import PROJECT, edited
from smlightning_sagemaker import findings
from smlightning_sagemaker.job import aws, job, request
from smlightning_sagemaker.job.job import Job, JobError

PLAIN = {"name": "x", "region": "us-east-1", "instance_type": "ml.g5.xlarge", "instance_count": 1}


def problems(table: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Key → problem and hint."""
    with pytest.raises(JobError) as raised:
        job.from_table(table, PROJECT)
    return {each.key: (each.problem, each.hint) for each in raised.value.findings}


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    # Key → a wrong table, the value in the problem, part of the hint.
    "nmae": ({"nmae": "x"}, "", "name"),
    "region": ({"region": 7}, "7", ""),
    "instance_type": ({"instance_type": ["ml.g5.xlarge"]}, "list", ""),
    "instance_count": ({"instance_count": True}, "true", ""),
    "max_run_s": ({"max_run_s": 2_419_201}, "2419201", ""),  # AWS: at most 28 days
    "price_per_hour": ({"price_per_hour": float("nan")}, "NaN", ""),
    "distribution": ({"distribution": "mpi"}, '"mpi"', ""),
    "network.subnets": ({"network": {"subnets": "subnet-1"}}, '"subnet-1"', ""),
    "hyperparameters.lr": ({"hyperparameters": {"lr": [1]}}, "list", ""),
    "environment.PIN": ({"environment": {"PIN": 4711}}, "int", ""),
    "secrets.PIN": ({"secrets": {"PIN": 4711}}, "int", ""),
    "tags.a": ({"tags": {"a": 1}}, "1", ""),
    "channels.training": ({"channels": {"training": 1}}, "1", ""),
    "tags": ({"tags": 1}, "1", "[tags]"),
    "max_wait_s": ({"max_wait_s": 60}, "", "[spot]"),
    "network.volume_gb": ({"network": {"volume_gb": 9}}, "", "above the first [table]"),
    "spot.epochs": ({"spot": {"epochs": 3}}, "", "[hyperparameters]"),
    "RetryStrategy": ({"RetryStrategy": {}}, "", "[request]"),
}


@pytest.mark.parametrize("key", MISTAKES)
def test_a_mistake_has_one_finding_with_its_key_and_hint(key: str) -> None:
    change, value, hint = MISTAKES[key]
    found = problems({**PLAIN, **change})
    assert list(found) == [key]
    problem, given_hint = found[key]
    assert hint in given_hint and given_hint
    assert problem.startswith(f"found {value}, expected " if value else "job.toml has no such")


def test_a_wrong_entry_of_a_list_is_reported_with_its_number() -> None:
    found = problems({**PLAIN, "network": {"subnets": ["subnet-1", 3]}})
    assert found["network.subnets"][0] == "entry 2: found 3, expected a valid string"


def test_a_missing_value_is_reported() -> None:
    table = {name: value for name, value in PLAIN.items() if name != "name"}
    found = problems(table)
    assert found["name"] == ("is missing", "set it in job.toml")


def test_all_mistakes_of_the_file_are_reported_at_once() -> None:
    table = {"nmae": "x", "region": 7, "network": {"subnets": "s", "tags": 1}, "tags": {"a": 1}}
    missing = {"name", "instance_type", "instance_count"}
    wrong = {"nmae", "region", "network.subnets", "network.tags", "tags.a"}
    with pytest.raises(JobError) as raised:
        job.from_table(table, PROJECT)
    lines = findings.error_lines(raised.value)
    assert lines == raised.value._render_traceback_()  # in a notebook
    assert {tuple(line.split(": ")[:2]) for line in lines} == {
        ("error", key) for key in missing | wrong
    }


@pytest.mark.parametrize(
    ("request_table", "key", "hint"),
    [
        (
            {"ResourceConfig": {"InstanceCount": 3}},
            "ResourceConfig.InstanceCount",
            "instance_count",
        ),
        ({"HyperParameters": {"lr": "1"}}, "HyperParameters.lr", "[hyperparameters]"),
        ({"VpcConfig": {"Subnets": []}}, "VpcConfig.Subnets", "network.subnets"),
        ({"Tags": []}, "Tags", "[tags]"),
        (
            {"AlgorithmSpecification": {"MetricDefinitions": []}},
            "AlgorithmSpecification.MetricDefinitions",
            "METRICS of src/options.py",
        ),
        ({"StoppingCondition": 3}, "StoppingCondition", ""),
    ],
)
def test_request_cannot_set_a_keys_member(request_table: Any, key: str, hint: str) -> None:
    found = problems({**PLAIN, "request": request_table})
    assert list(found) == [f"request.{key}"]
    assert hint in found[f"request.{key}"][1]


# Without a default, or with another one in the file: the project's answers.
ANSWERED = ("distribution", "tags", "instance_type", "instance_count")


def test_the_projects_file_says_the_defaults(tmp_path: Path) -> None:
    """The values in the template's job.toml equal the defaults of missing keys."""
    text = edited(tmp_path / "job.toml", {}).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    written = job.load(tmp_path / "job.toml", PROJECT)
    for name, field in Job.model_fields.items():
        if not field.is_required() and name not in ANSWERED:
            assert getattr(written, name) == field.get_default(call_default_factory=True), name


def test_every_example_of_request_in_the_projects_file_is_valid(tmp_path: Path) -> None:
    """Without the comment signs, the examples are members that AWS knows."""
    text = edited(tmp_path / "job.toml", {}).read_text(encoding="utf-8")
    before, examples = text.split("\n[request]\n")
    lines = [line.removeprefix("# ") for line in examples.splitlines()]
    (tmp_path / "job.toml").write_text("\n".join([before, "[request]", *lines]), encoding="utf-8")
    wanted = job.load(tmp_path / "job.toml", PROJECT)
    members = {"OutputDataConfig", "ResourceConfig", "RetryStrategy", "StoppingCondition"}
    assert wanted.request.keys() == members
    body = request.dry_run(wanted, PROJECT)
    aws.reject(body)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b"a = ", "end of document"),
        (b'a = "\n"', "line 1"),
        (b"[tags]\n[spot]\n[tags]\n", "line 3"),
        (b"a = " + b"1" * 5000, "TOML"),
        (b"a = " + b"[" * 5000, "TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_not_toml_is_one_finding(
    tmp_path: Path, content: bytes | None, found: str
) -> None:
    path = tmp_path / "job.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JobError) as raised:
        job.load(path, PROJECT)
    (finding,) = raised.value.findings
    assert finding.key == str(path) and found in finding.problem and finding.hint


def test_an_unknown_key_is_reported_with_the_name_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('name = "x"\nregion = "us-east-1"\ninstance_typ = "ml.g5.xlarge"\n')
    with pytest.raises(JobError, match=r"instance_typ: other\.toml has no such key"):
        job.load(file, PROJECT)
