"""A channel's sample from moto's S3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from smlightning.errors import UserError
from smlightning_sagemaker.rehearsal import samples
from smlightning_sagemaker.rehearsal.samples import copy_sample

REGION = "us-east-1"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", REGION)
        client.create_bucket(Bucket="words")
        yield client


def put(s3: Any, key: str, content: bytes) -> None:
    s3.put_object(Bucket="words", Key=key, Body=content)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_sample_comes_from_all_over_the_listing(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in (("CHANNEL", 1000), ("BEGINNING", 95), ("COPIED", 8)):
        monkeypatch.setattr(samples, name, limit)
    put(s3, "data/0/0.csv", b"text,label\n" * 50)
    for i in range(32):
        put(s3, f"data/{i // 16}/{i:02} image.bin", b"x" * (2000 if i == 4 else 100))
    put(s3, "database/x.csv", b"x")
    sentence = copy_sample("training", "s3://words/data/", REGION, tmp_path)
    copied = files(tmp_path)
    assert "0/0.csv" in copied and any(name.startswith("1/") for name in copied)
    assert 4 < len(copied) <= 8 and sentence.startswith(f"{len(copied)} objects")
    assert (tmp_path / "0/0.csv").read_text() == "text,label\n" * 8, "whole lines of 95 bytes"


def test_a_single_object_keeps_its_name(s3: Any, tmp_path: Path) -> None:
    put(s3, "data/0/0.csv", b"text,label\n")
    copy_sample("training", "s3://words/data/0/0.csv", REGION, tmp_path)
    assert files(tmp_path) == {"0.csv"}


def test_no_object_lands_outside_the_channels_folder(s3: Any, tmp_path: Path) -> None:
    put(s3, "out/../../outside.csv", b"x")
    with pytest.raises(UserError) as raised:
        copy_sample("training", "s3://words/out/", REGION, tmp_path / "channel")
    assert "s3://words/out/" in raised.value.problem
    assert files(tmp_path) == set()


@pytest.mark.parametrize("address", ["fsx", "s3://words/data"])
def test_without_data_or_credentials_the_error_asks_for_a_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(UserError) as raised:
        copy_sample("training", address, REGION, tmp_path)
    assert "--channel training=DIR" in str(raised.value)
