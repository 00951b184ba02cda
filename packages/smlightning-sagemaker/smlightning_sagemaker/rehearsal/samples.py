"""A sample of a channel's data from S3, for a channel without a local folder."""

from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws

MIB = 2**20
LINES = (".csv", ".tsv", ".jsonl", ".txt")  # files whose beginning is valid data, too


CHANNEL = 64 * MIB  # bytes of a sample
BEGINNING = 4 * MIB  # bytes of one file of lines, up to the end of a line
LISTED = 1000  # objects from which a sample is chosen
COPIED = 200  # objects of a sample


def copy_sample(name: str, address: str, region: str, into: Path) -> str:
    """Copy objects from all over an address's listing into a folder, as SageMaker names them.

    Returns:
        How much was copied, for a note.

    Raises:
        UserError: there is no access, or no object that is small enough.
    """
    instead = f"give a local folder with some of its data: --channel {name}=DIR"
    if not address.startswith("s3://"):
        raise UserError(f"channel {name} is not on S3", instead)
    bucket, prefix = aws.s3_location(address)
    size = copied = 0
    with aws.errors(f"channel {name} = {address} cannot be read", instead):
        s3 = aws.client("s3", region)
        listed = list(islice(filter(itemgetter("Size"), aws.all_objects(address, s3)), LISTED))
        step = -(-len(listed) // COPIED) or 1  # rounded up; each class may have its folder
        for item in listed[::step]:
            key, bytes_of_object = item["Key"], item["Size"]
            path = into / relative_name(key, prefix)
            is_cut = key.endswith(LINES) and bytes_of_object > BEGINNING
            too_large = size + (BEGINNING if is_cut else bytes_of_object) > CHANNEL
            if too_large or not path.resolve().is_relative_to(into.resolve()):
                continue
            content = read_object(s3, bucket, key, is_cut)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            size += len(content)
            copied += 1
    if not copied:
        problem = f"channel {name} = {address} has no data of at most {CHANNEL // MIB} MiB"
        raise UserError(problem, f"check it, or {instead}")
    return f"{copied} objects of {address}, {size / MIB:.1f} MiB"


def relative_name(key: str, prefix: str) -> str:
    """The object's path in the channel's folder: below a folder's prefix, else its last part."""
    folder = prefix if prefix.endswith("/") else f"{prefix}/"
    if key.startswith(folder):
        return key.removeprefix(folder)
    return key.rpartition("/")[2]


def read_object(s3: Any, bucket: str, key: str, is_cut: bool) -> bytes:
    """An object, or the whole lines in its first bytes."""
    if not is_cut:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    part = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes=0-{BEGINNING - 1}")
    content = bytes(part["Body"].read())
    return content[: content.rfind(b"\n") + 1]
