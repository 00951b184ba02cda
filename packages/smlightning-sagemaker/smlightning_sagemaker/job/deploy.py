"""Create a planned deployment and remove it again, also after a step that failed."""

import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.serving import PLAIN
from smlightning_sagemaker.follow.fetch import download
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.deploy_plan import Deployment
from smlightning_sagemaker.job.model_archive import TRAINED, add_code

BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack")
KINDS = ("Endpoint", "EndpointConfig", "Model")  # in the order of their removal
POLL_S = 15.0


def deploy(deployment: Deployment, src: Path) -> str:
    """Create the endpoint, wait until it answers, and return how to use it.

    Args:
        deployment: as `deploy_plan.plan` returns it.
        src: folder with predict.py.

    Raises:
        UserError: it exists already, or AWS gave up on it, for the reason it gives.
    """
    client = aws.client("sagemaker", deployment.region)
    name = deployment.name
    undeploy_it = f"smlightning undeploy {name} --region {deployment.region}"
    if any(aws.call(client, "Describe", kind, name) for kind in deployment.requests):
        raise UserError(f"{name} is deployed already", f"remove it first: {undeploy_it}")
    try:
        upload(deployment, src)
        for kind, request in deployment.requests.items():
            aws.call(client, "Create", kind, name, **request)
        print(f"creates {name}, which takes some minutes", flush=True)
        answer = wait(client, name)
        status = answer.get("EndpointStatus", "removed meanwhile")
        if status != "InService":
            reason = answer.get("FailureReason", "AWS gives no reason")
            raise UserError(
                f"{name} is {status}: {reason}", "see its log in CloudWatch, then deploy again"
            )
    except BaseException as error:
        if "already exist" not in str(error):  # else somebody else deployed it meanwhile
            remove_after(error, deployment, f"{name} may be left, and billed: {undeploy_it}")
        raise
    return (
        f"use it: aws sagemaker-runtime invoke-endpoint --region {deployment.region} "
        f"--endpoint-name {name} --content-type {PLAIN} "
        "--cli-binary-format raw-in-base64-out --body 'a text' answer.json"
    )


def remove_after(error: BaseException, deployment: Deployment, left: str) -> None:
    """Remove what a failed deployment has created; if that fails too, raise the first error."""
    try:
        remove(deployment.name, deployment.region, deployment.archive)
    except BaseException as problem:
        print(f"{left} ({type(problem).__name__}: {problem})", file=sys.stderr)
        raise error from problem


def upload(deployment: Deployment, src: Path) -> None:
    """Put model and code into S3 next to the job's model, encrypted as that is."""
    s3 = aws.client("s3", deployment.region)
    encryption = None
    if deployment.key:
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": deployment.key}
    bucket, key = aws.s3_location(deployment.archive)
    with tempfile.TemporaryDirectory() as name:
        folder, packed = Path(name, "model"), Path(name, "packed")
        folder.mkdir()
        download(s3, deployment.trained, folder / TRAINED)
        add_code(folder, src, deployment.options.gpus)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
        if not key.endswith("/"):
            with tarfile.open(packed, "w:gz", compresslevel=1) as tar:  # weights hardly compress
                tar.add(folder, ".")
            files = {"": packed}
        for place, path in sorted(files.items()):
            if path.is_file():
                s3.upload_file(str(path), bucket, key + place, ExtraArgs=encryption)


def undeploy(name: str, region: str) -> list[str]:
    """Delete a deployment that `deploy` created, and return the deleted kinds.

    Raises:
        UserError: something of this name exists that `deploy` did not create.
    """
    client = aws.client("sagemaker", region)
    model = aws.call(client, "Describe", "Model", name) or {}
    if archive_of(model, name):  # the model is created first and removed last
        return remove(name, region)
    if model or any(aws.call(client, "Describe", kind, name) for kind in KINDS):
        raise UserError(
            f"{name} in {region} was not made by deploy", "remove it in the SageMaker console"
        )
    return []


def archive_of(model: dict[str, Any], name: str) -> str:
    """The S3 address that `deploy` made for a model; empty for other models."""
    container = model.get("PrimaryContainer", {})
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    uri = str(source.get("S3Uri") or container.get("ModelDataUrl", ""))
    return uri if uri.endswith((f"/deploy/{name}/model.tar.gz", f"/deploy/{name}/")) else ""


def remove(name: str, region: str, archive: str = "") -> list[str]:
    """Delete all parts of a deployment that exist, and return their kinds.

    Args:
        name: of the deployment.
        region: of the deployment.
        archive: its S3 address, for a deployment that has no model yet.
    """
    client = aws.client("sagemaker", region)
    removed: list[str] = []
    for kind in KINDS:
        answer = aws.call(client, "Describe", kind, name)
        if answer and answer.get("EndpointStatus") in BUSY:
            print(
                f"waiting until AWS can remove {name}; if you interrupt this, it is billed until "
                f"you run smlightning undeploy {name}"
            )
            wait(client, name)
        if kind == "Model":  # it has the archive's address, and so is deleted after the archive
            remove_objects(archive_of(answer or {}, name) or archive, region)
        if answer:
            aws.call(client, "Delete", kind, name)
            removed.append(kind)
    return removed


def remove_objects(archive: str, region: str) -> None:
    """Delete an archive, or a folder's objects, from S3; nothing if there is no address."""
    if archive:
        s3 = aws.client("s3", region)
        for item in aws.all_objects(archive, s3):
            s3.delete_object(Bucket=aws.s3_location(archive)[0], Key=item["Key"])


def wait(client: Any, name: str) -> dict[str, Any]:
    """DescribeEndpoint's answer once AWS creates or changes the endpoint no longer.

    botocore's waiters stop when the network fails or AWS throttles them (botocore.waiter,
    WaiterError), while the endpoint is created and billed; this function asks AWS again.
    """
    while True:
        found = aws.answer(lambda: aws.call(client, "Describe", "Endpoint", name)) or {}
        if found.get("EndpointStatus") not in BUSY:
            return dict(found)
        time.sleep(POLL_S)
