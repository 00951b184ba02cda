"""Preflight's findings from the answers of IAM's simulation, in the form that AWS documents.

The policies are evaluated here (policies.py); only AWS's own simulator can prove its answers.
"""

from typing import Any

import pytest
from policies import EVERYTHING, simulation

from moto_account import ACCOUNT, REGION, findings, record
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job.job import Job

pytest_plugins = "moto_account"

CALLER = f"arn:aws:sts::{ACCOUNT}:user/moto"  # as moto answers; AWS: arn:aws:iam
ROLE = f"arn:aws:iam::{ACCOUNT}:role/training"
FULL_ACCESS = {"Statement": EVERYTHING["Statement"]}  # FullAWSAccess, which each account has


def denies(**rest: Any) -> dict[str, Any]:
    return {"Statement": [{"Effect": "Deny", "Resource": "*", **rest}]}


def allows(*actions: str, resources: Any = "*", **condition: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resources}
    return {"Statement": [{**statement, **condition}]}


def other_regions(*allowed: str) -> dict[str, Any]:
    """AWS's own example (organizations/latest/userguide/orgs_manage_policies_scps_examples)."""
    return denies(
        NotAction=["iam:*", "organizations:*", "route53:*", "support:*", "sts:*"],
        Condition={"StringNotEquals": {"aws:RequestedRegion": list(allowed)}},
    )


def answered(monkeypatch: pytest.MonkeyPatch, job: Job, answer: Any) -> list[Finding]:
    record(monkeypatch, SimulatePrincipalPolicy=answer)
    return findings(job)


ALLOWING = {
    "region": other_regions(REGION, "eu-west-1"),
    "account": denies(
        Action="*", Condition={"StringNotEquals": {"aws:PrincipalAccount": [ACCOUNT]}}
    ),
    "service": denies(Action="s3:*", Condition={"Bool": {"aws:ViaAWSService": "true"}}),
    "principal": denies(Action="*", Condition={"ArnNotLike": {"aws:PrincipalArn": [CALLER, ROLE]}}),
}


@pytest.mark.parametrize("name", ALLOWING)
def test_a_job_that_the_organisation_allows_passes(aws, good, monkeypatch, name):
    answer = simulation({}, scps=[FULL_ACCESS, ALLOWING[name]])
    assert answered(monkeypatch, good, answer) == []


def test_a_denial_by_an_scp_is_one_warning(aws, good, monkeypatch):
    policy = denies(Action="*", Condition={"Bool": {"aws:SecureTransport": "true"}})
    answer = simulation({}, scps=[FULL_ACCESS, policy])
    found = answered(monkeypatch, good, answer)
    assert [(each.level, each.key) for each in found] == [
        ("warning", "caller.SCP"),
        ("warning", "role.SCP"),
    ]
    assert "sagemaker:CreateTrainingJob" in found[0].problem and "(SCP)" in found[0].problem
    assert REGION in found[0].problem and "organisation" in found[0].cure


def test_a_region_of_an_arn_is_the_region_of_the_call(aws, good, monkeypatch):
    """The image's registry is in another region than the job, which the organisation denies."""
    image = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/team/train:1"
    job = good.replace(image=image, distribution="torch_distributed")
    found = answered(monkeypatch, job, simulation({}, scps=[FULL_ACCESS, other_regions(REGION)]))
    (denied,) = [each for each in found if each.key.endswith(".SCP")]
    assert denied.key == "role.SCP"
    assert "ecr:BatchGetImage" in denied.problem and "s3:" not in denied.problem


WIDE = allows("sagemaker:*", "s3:*", "logs:*", "ecr:*", "ec2:*", "cloudwatch:*", "iam:PassRole")


def test_a_denial_by_a_boundary_is_one_warning(aws, good, monkeypatch):
    """The boundary of the role, which allows the job, gives none."""
    narrow = allows("sagemaker:*", "s3:*", "logs:*")
    answer = simulation({}, boundaries={CALLER: narrow, ROLE: WIDE})
    (limited,) = answered(monkeypatch, good, answer)
    assert (limited.level, limited.key) == ("warning", "caller.boundary")
    assert limited.problem.count(":") == 1 and "iam:PassRole" in limited.problem


def test_one_denied_bucket_of_several_is_one_finding_that_names_it(aws, good, monkeypatch):
    s3 = aws.client("s3")
    for name in ("one", "two"):
        s3.create_bucket(Bucket=f"{name}-of-team")
        s3.put_object(Bucket=f"{name}-of-team", Key="data/x", Body=b"x")
    job = good.replace(
        channels={name: f"s3://{name}-of-team/data/" for name in ("one", "two")},
        hyperparameters={},
    )
    open_ones = [f"arn:aws:s3:::{name}" for name in ("one-of-team", "language-id")]
    policies = [
        allows("logs:*", "ecr:*", "cloudwatch:*"),
        allows("s3:*", resources=[*open_ones, *(f"{arn}/*" for arn in open_ones)]),
        allows("s3:GetObject", resources="*"),
    ]
    (found,) = answered(monkeypatch, job, simulation({ROLE: policies}))
    assert (found.level, found.key) == ("warning", "role.s3:ListBucket")
    assert "arn:aws:s3:::two-of-team" in found.problem and "one-of-team" not in found.problem
