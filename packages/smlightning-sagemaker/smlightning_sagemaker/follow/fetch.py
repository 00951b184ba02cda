"""The model of a job that has ended: downloaded, and unpacked without leaving its folder."""

import tarfile
import tempfile
from pathlib import Path
from typing import Any

from smlightning.errors import UserError, is_disk_full, root_cause
from smlightning_sagemaker.follow.follow import ENDED, describe
from smlightning_sagemaker.job import aws


def fetch(name: str, region: str, target: Path) -> Path:
    """Download the job's model into ``target``, and its curves, if it has any, into ``output/``.

    Raises:
        UserError: the job has not ended, there is no model, or its archive is damaged or unsafe.
    """
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken or target.resolve() == Path.cwd():
        raise UserError(f"{target} exists already", "remove it, or choose another folder with --to")
    job, s3 = describe(name, aws.client("sagemaker", region)), aws.client("s3", region)
    uri, status = address_of(job), job["TrainingJobStatus"]
    see_log = f"see its log: smlightning follow {name} --region {region}"
    if status not in ENDED:
        raise UserError(f"{name} has no model yet, it is {status}", see_log)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as temporary:
        folder = Path(temporary)
        if not uri or not download(s3, uri, folder / "model"):
            raise UserError(f"{name} left no model{f' at {uri}' if uri else ''}", see_log)
        output = folder / "model" / "output"
        if output.exists():
            raise UserError(
                f"the model of {name} contains `output`, the folder that fetch uses for curves",
                f"download {uri} by aws s3 cp, and save it under another name in training",
            )
        download(s3, output_address(uri), output)
        (folder / "model").replace(target)
    return target


def address_of(job: dict[str, Any]) -> str:
    """The S3 address of a job's model: an archive, or a folder, which then ends with a slash.

    With CompressionType NONE, S3ModelArtifacts is the prefix of the files of /opt/ml/model
    (sagemaker/latest/dg/model-train-storage-uncompressed.html).

    Args:
        job: DescribeTrainingJob's answer.
    """
    uri = str(job.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""))
    uncompressed = job.get("OutputDataConfig", {}).get("CompressionType") == "NONE"
    return f"{uri.rstrip('/')}/" if uri and uncompressed else uri


def output_address(model: str) -> str:
    """The S3 address of a job's curves, next to its model."""
    if model.endswith("/"):
        return f"{model.rstrip('/').rpartition('/')[0]}/data/"
    return model.replace("model.tar.gz", "output.tar.gz")


def download(s3: Any, uri: str, folder: Path) -> bool:
    """Bring an archive, unpacked, or a folder from S3; False if nothing is at that address."""
    from botocore.exceptions import ClientError

    if uri.endswith("/"):
        return download_folder(s3, uri, folder)
    bucket, key = aws.s3_location(uri)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        archive = Path(temporary, "archive")
        try:
            s3.download_file(bucket, key, str(archive))
        except ClientError as error:
            if aws.code(error) not in ("404", "NoSuchKey"):
                raise
            return False
        unpack(archive, folder)
    return True


def download_folder(s3: Any, uri: str, folder: Path) -> bool:
    """Download everything below an S3 address; False if there is nothing.

    Raises:
        UserError: a key leads out of the folder.
    """
    bucket, prefix = aws.s3_location(uri)
    has_objects = False
    for item in aws.all_objects(uri, s3):
        name = item["Key"].removeprefix(prefix)
        if not name or name.endswith("/"):  # the S3 console creates one for a folder
            continue
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"s3://{bucket}/{item['Key']} would be written outside of {folder}",
                "remove that object, or download the others with aws s3 cp",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(bucket, item["Key"], str(target))
        has_objects = True
    return has_objects


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar.gz within ``target``.

    Python's ``data`` filter (PEP 706) rejects devices and paths out of the folder.
    Symbolic links, which got past it (CVE-2025-4517), are rejected before.

    Raises:
        UserError: the archive is damaged or rejected.
        OSError: the disk is full.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            if any(member.issym() for member in tar.getmembers()):
                problem = "the archive has symbolic links, which can lead out of its folder"
                raise UserError(problem, "save copies of the files in training")
            tar.extractall(target, filter="data")
    except UserError:
        raise
    except Exception as error:  # of crafted headers tarfile raises KeyError and MemoryError too
        if is_disk_full(error):
            raise
        raise UserError(
            f"the archive cannot be unpacked ({root_cause(error)})",
            "fetch it again, or check what training saved",
        ) from error
