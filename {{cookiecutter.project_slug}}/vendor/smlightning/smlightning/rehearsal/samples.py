"""A sample of a channel's data from S3, for a channel without a local folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws

MIB = 2**20
LINES = (".csv", ".tsv", ".jsonl", ".txt")  # the beginning of such a file is valid data, too


@dataclass(frozen=True)
class Limits:
    """How much of a channel is copied."""

    channel: int = 64 * MIB  # bytes of all objects
    beginning: int = 4 * MIB  # bytes of one file of lines, up to the end of a line
    listed: int = 1000  # objects that are looked at
    copied: int = 200  # objects


def copy_sample(
    name: str, address: str, region: str, into: Path, limits: Limits | None = None
) -> str:
    """Copy objects from all over an address's listing into a folder, as SageMaker names them.

    Returns:
        How much was copied, for a note.

    Raises:
        UserError: there is no access, or no object that is small enough.
    """
    limits = limits or Limits()
    instead = f"give a local folder with some of its data: --channel {name}=DIR"
    if not address.startswith("s3://"):
        raise UserError(f"channel {name} is not on S3", instead)
    bucket, prefix = aws.s3_location(address)
    size = copied = 0
    with aws.errors(f"channel {name} = {address} cannot be read", instead):
        s3 = aws.client("s3", region)
        listed = list(islice(objects(s3, bucket, prefix), limits.listed))
        step = -(-len(listed) // limits.copied) or 1  # rounded up; each class may have its folder
        for key, bytes_of_object in listed[::step]:
            path = into / relative_name(key, prefix)
            whole = not key.endswith(LINES) or bytes_of_object <= limits.beginning
            too_large = size + (bytes_of_object if whole else 0) > limits.channel
            if too_large or not path.resolve().is_relative_to(into.resolve()):
                continue
            content = read_object(s3, bucket, key, None if whole else limits.beginning)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            size += len(content)
            copied += 1
    if not copied:
        most = f"{limits.channel // MIB} MiB"
        problem = f"channel {name} = {address} has no data of at most {most}"
        raise UserError(problem, f"check it, or {instead}")
    return f"{copied} objects of {address}, {size / MIB:.1f} MiB"


def objects(s3: Any, bucket: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Keys and sizes of all objects that are not empty."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for item in page.get("Contents", []):
            if item["Size"]:
                yield item["Key"], item["Size"]


def relative_name(key: str, prefix: str) -> str:
    """The object's path in the channel's folder: below a folder's prefix, else its last part."""
    folder = prefix if prefix.endswith("/") else f"{prefix}/"
    if key.startswith(folder):
        return key.removeprefix(folder)
    return key.rpartition("/")[2]


def read_object(s3: Any, bucket: str, key: str, most: int | None) -> bytes:
    """An object, or the whole lines in its first bytes."""
    if most is None:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    part = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes=0-{most - 1}")
    content = bytes(part["Body"].read())
    return content[: content.rfind(b"\n") + 1]
