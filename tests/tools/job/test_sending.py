"""Calls to the account and uploads before a request is sent: real boto3 against moto."""

import json
from pathlib import Path
from typing import Any

import pytest

from moto_account import ACCOUNT, REGION, record, refusal
from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker.job import request, sending

pytest_plugins = "moto_account"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/training"


def test_a_role_by_name_gets_its_arn(aws: Any) -> None:
    assert sending.execution_role("training", REGION) == ROLE
    assert sending.execution_role(ROLE, REGION) == ROLE


def test_no_role_and_no_studio_is_said(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"Arn": f"arn:aws:iam::{ACCOUNT}:user/me", "Account": ACCOUNT}
    record(monkeypatch, GetCallerIdentity=user)
    with pytest.raises(UserError) as raised:
        sending.execution_role("", REGION)
    assert "role" in raised.value.problem and "ARN" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("training", "role/training"),
        ("AmazonSageMaker-ExecutionRole-1", "role/service-role/AmazonSageMaker-ExecutionRole-1"),
        ("other", "role/other"),
    ],
)
def test_the_callers_own_role_is_taken(
    aws: Any, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/SageMaker"
    record(monkeypatch, GetCallerIdentity={"Arn": arn, "Account": ACCOUNT})
    assert sending.execution_role("", REGION) == f"arn:aws:iam::{ACCOUNT}:{expected}"


def test_studios_role_is_found(aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "resource-metadata.json"
    path.write_text(json.dumps({"ExecutionRoleArn": ROLE}))
    monkeypatch.setattr(sending, "STUDIO", path)
    assert sending.execution_role("", REGION) == ROLE


def test_the_default_bucket_is_created_once(aws: Any) -> None:
    name = f"sagemaker-{REGION}-{ACCOUNT}"
    wanted = GOOD.replace(bucket="")
    buckets = aws.client("s3")
    before = [bucket["Name"] for bucket in buckets.list_buckets()["Buckets"]]
    assert sending.account_destination(wanted, create=False).bucket == name not in before
    assert [bucket["Name"] for bucket in buckets.list_buckets()["Buckets"]] == before
    assert sending.account_destination(wanted).bucket == name
    assert sending.account_destination(wanted).bucket == name
    buckets.head_bucket(Bucket=name)


def test_another_accounts_default_bucket_is_refused(
    aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, GetBucketLocation=refusal("AccessDenied", "GetBucketLocation"))
    with pytest.raises(UserError) as raised:
        sending.account_destination(GOOD.replace(bucket=""))
    assert "bucket" in raised.value.hint


def test_the_upload_is_encrypted_with_the_outputs_key(
    aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = record(monkeypatch)
    wanted = GOOD.replace(bucket="", request={"OutputDataConfig": {"KmsKeyId": "alias/mine"}})
    place = sending.account_destination(wanted)
    made = request.training_request(wanted, PROJECT, place, "words")
    uri = sending.upload(wanted, PROJECT, place, "words", made["OutputDataConfig"])
    assert uri == json.loads(made["HyperParameters"]["sagemaker_submit_directory"])
    put = asked["PutObject"]
    assert (put["ServerSideEncryption"], put["SSEKMSKeyId"]) == ("aws:kms", "alias/mine")
    assert put["ExpectedBucketOwner"] == ACCOUNT
