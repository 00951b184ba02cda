"""Preflight with an account: what AWS does not answer, and what the commands print."""

import json

import pytest
from botocore.parsers import ResponseParserError

from moto_account import ACCOUNT, Vpc, findings, levels, record, refusal
from small_job import PROJECT
from smlightning_sagemaker import preflight
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job.job import Job, Network
from smlightning_sagemaker.preflight import account

pytest_plugins = "moto_account"


def test_a_good_job_passes(aws, good):
    assert findings(good) == []
    isolated = good.replace(request={"EnableNetworkIsolation": True})
    assert findings(isolated) == []  # its code is uploaded later


def of_account(job: Job) -> list[tuple[str, str]]:
    """Preflight's findings about the account."""
    keys = ("AWS", "role", "bucket")
    found = preflight.run(job, PROJECT)
    return [(each.level, each.key) for each in found if each.key.partition(".")[0] in keys]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("training", []),
        ("", [("error", "role")]),  # Studio's, and this is not Studio
        ("nobody", [("error", "role")]),
    ],
)
def test_the_role_of_job_toml_is_looked_up(aws, good, role, expected):
    assert of_account(good.replace(role=role)) == expected


def test_without_credentials_the_account_is_skipped(good):
    destination, found = account.destination(good)
    assert destination is None and [(each.level, each.key) for each in found] == [
        ("skipped", "AWS")
    ]
    assert "without the account" in preflight.verdict(found)
    assert preflight.verdict([]) == "preflight passed"
    assert preflight.verdict([], offline=True).endswith(
        "without the account; not checked: role, keys, secrets, network, data"
    )


def test_the_last_line_lists_whatever_was_not_checked(aws, good, monkeypatch):
    """IAM answers 500, and uv has no index: neither is a pass."""
    failed = refusal("InternalFailure", "SimulatePrincipalPolicy")
    record(monkeypatch, SimulatePrincipalPolicy=failed)
    assert preflight.verdict(findings(good)) == "preflight passed; not checked: role"
    later = Finding("skipped", "src/requirements.txt", "not resolved", "try again")
    assert preflight.verdict([later]).endswith("not checked: src/requirements.txt")
    wrong = Finding("error", "image", "is no image", "correct it")
    failed_line = preflight.verdict([wrong, later])
    assert failed_line.startswith("preflight failed") and "src/requirements.txt" in failed_line


def test_expired_credentials_are_an_error(aws, good, monkeypatch):
    record(monkeypatch, GetCallerIdentity=refusal("ExpiredToken"))
    assert of_account(good) == [("error", "AWS")]


def test_a_denied_call_is_skipped_and_the_other_checks_stay(aws, good, monkeypatch):
    channels = {"training": "s3://language-id/nothing"}
    denied = refusal("AccessDenied", "SimulatePrincipalPolicy")
    record(monkeypatch, SimulatePrincipalPolicy=denied)
    assert levels(good.replace(channels=channels)) == [
        ("skipped", "role"),
        ("error", "channels.training"),
    ]


def test_a_proxys_answer_in_html_is_one_line(aws, good, monkeypatch):
    """botocore's error about it is no BotoCoreError."""
    html = ResponseParserError("<html>")
    record(monkeypatch, HeadBucket=html)
    assert levels(good) == [("skipped", "bucket")]
    record(monkeypatch, GetCallerIdentity=html)
    assert of_account(good) == [("skipped", "AWS")]
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: good)
    assert main(["submit", "--yes"]) == 1


@pytest.fixture
def closed(vpc: Vpc, good: Job) -> Job:
    """A job in a security group that lets nothing in."""
    made = vpc.ec2.create_security_group(GroupName="h", Description="h", VpcId=vpc.id)
    vpc.gateway("s3")
    network = Network(subnets=[vpc.subnet], security_groups=[made["GroupId"]])
    return good.replace(distribution="smddp", network=network, environment={"PIP_NO_INDEX": "1"})


def test_preflight_prints_findings_and_writes_them_as_json(closed, monkeypatch, tmp_path, capsys):
    file = tmp_path / "new" / "x.json"
    right = closed.replace(network=Network())
    for job, errors in ((closed, 2), (right, 0)):
        monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_, job=job: job)
        assert main(["preflight", "--json", str(file)]) == int(errors > 0)
        written, printed = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
        assert written["ok"] == (errors == 0)
        found = [each["level"] for each in written["findings"]]
        assert found.count("error") == printed.count("error   network.security_groups") == errors


def test_submit_makes_the_checks_of_preflight(closed, monkeypatch, capsys):
    """Those of the account and of its network, too."""
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: closed)
    printed: list[list[str]] = []
    for command in (["preflight"], ["submit", "--yes", "--no-follow"]):
        assert main(command) == 1
        both = capsys.readouterr()
        lines = (both.out + both.err).splitlines()
        printed.append([line for line in lines if line.startswith(("error", "warning", "skipped"))])
    assert printed[0] == printed[1] and len(printed[0]) > 2


def test_in_studio_an_empty_role_is_the_callers_own(aws, good, monkeypatch):
    caller = {
        "Account": ACCOUNT,
        "Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/training/SageMaker",
    }
    asked = record(monkeypatch, GetCallerIdentity=caller)
    assert of_account(good.replace(role="")) == []
    assert asked["SimulatePrincipalPolicy"]["PolicySourceArn"] == good.role
