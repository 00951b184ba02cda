"""Creating a planned deployment, and removing it again, also after a step that failed."""

import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import archive, aws
from smlightning.launch.deploy_plan import Deployment
from smlightning.launch.fetch import unpack
from smlightning.serving import PLAIN

BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack", "InProgress", "Stopping")
KINDS = ("TransformJob", "Endpoint", "EndpointConfig", "Model")  # in the order of their removal
POLL_S = 15.0


def deploy(deployment: Deployment, src: Path) -> str:
    """Create it, wait until it answers or the transform has ended; how to go on, in words.

    Args:
        deployment: as `deploy_plan.plan` returns it.
        src: folder of the handlers, predict.py.

    Raises:
        UserError: it exists already, or AWS gave up on it, for the reason it gives.
    """
    client = aws.client("sagemaker", deployment.region)
    name = deployment.name
    if any(aws.call(client, "Describe", kind, name) for kind in deployment.requests):
        raise UserError(
            f"{name} is deployed already",
            f"remove it first: python -m smlightning undeploy {name}",
        )
    status = ""
    try:
        upload(deployment, src)
        for kind, request in deployment.requests.items():
            aws.call(client, "Create", kind, name, **request)
        print(f"making  {name}, which takes some minutes", flush=True)
        last = list(deployment.requests)[-1]
        answer = wait(client, last, name)
        status = answer.get(f"{last}Status", "removed meanwhile")
        if status not in ("InService", "Completed"):
            reason = answer.get("FailureReason", "AWS gives no reason")
            raise UserError(
                f"{name} is {status}: {reason}", "see its log in CloudWatch, then deploy again"
            )
    finally:
        if status != "InService":  # a transform's model and archive serve it alone
            remove_all(deployment)
    return next_step(deployment)


def next_step(deployment: Deployment) -> str:
    """How to get answers of what was deployed."""
    transform = deployment.requests.get("TransformJob")
    if transform:
        return f"answers {transform['TransformOutput']['S3OutputPath']}, a line for each line"
    return (
        f"ask it  aws sagemaker-runtime invoke-endpoint --region {deployment.region} "
        f"--endpoint-name {deployment.name} --content-type {PLAIN} "
        "--cli-binary-format raw-in-base64-out --body 'a text' answer.json"
    )


def upload(deployment: Deployment, src: Path) -> None:
    """Put the archive of model and code beside the job's own, encrypted as that is."""
    s3 = aws.client("s3", deployment.region)
    encryption = None
    if deployment.key:
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": deployment.key}
    with tempfile.TemporaryDirectory() as folder:
        trained, packed = Path(folder, "trained"), Path(folder, "packed")
        s3.download_file(*aws.s3_location(deployment.trained), str(trained))
        pack(trained, packed, src)
        s3.upload_file(str(packed), *aws.s3_location(deployment.archive), ExtraArgs=encryption)


def pack(trained: Path, packed: Path, src: Path) -> None:
    """Write the job's archive again with src/ and the package's training part as its folder code/.

    The inference image looks for handlers there.
    """
    unneeded = shutil.ignore_patterns("train.py", "__pycache__", ".*")
    with tempfile.TemporaryDirectory(dir=packed.parent) as folder:
        unpack(trained, Path(folder))
        code = Path(folder, "code")
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(src, code, ignore=unneeded)
        archive.copy_package(code)
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:  # weights hardly compress
            tar.add(folder, ".")


def remove_all(deployment: Deployment) -> None:
    """Remove what a failed deployment has created; where that fails too, say how to do it later."""
    name, region = deployment.name, deployment.region
    try:
        remove(name, region, deployment.archive)
    except BaseException:
        again = f"python -m smlightning undeploy {name} --region {region}"
        print(f"{name} may be left, and billed: {again}", file=sys.stderr)
        raise


def undeploy(name: str, region: str) -> list[str]:
    """Delete a deployment that `deploy` created; the kinds that there were.

    Raises:
        UserError: the name is somebody else's.
    """
    client = aws.client("sagemaker", region)
    model = aws.call(client, "Describe", "Model", name) or {}
    exists = bool(model) or aws.call(client, "Describe", "Endpoint", name)
    if exists and not archive_of(model, name):
        raise UserError(
            f"{name} in {region} was not made by deploy", "remove it in the SageMaker console"
        )
    return remove(name, region)


def archive_of(model: dict[str, Any], name: str) -> str:
    """The S3 address of the archive that `deploy` made for a model; empty for other models."""
    uri = str(model.get("PrimaryContainer", {}).get("ModelDataUrl", ""))
    return uri if uri.endswith(f"/deploy/{name}/model.tar.gz") else ""


def remove(name: str, region: str, packed: str = "") -> list[str]:
    """Delete what there is of a deployment; the kinds that there were."""
    client = aws.client("sagemaker", region)
    removed: list[str] = []
    for kind in KINDS:
        answer = aws.call(client, "Describe", kind, name)
        if not answer:
            continue
        if kind == "TransformJob":  # AWS keeps its record
            if answer["TransformJobStatus"] == "InProgress":
                aws.call(client, "Stop", kind, name)
            continue
        if answer.get("EndpointStatus") in BUSY:
            print(
                f"waiting until AWS can remove {name}; "
                f"else it is billed until: python -m smlightning undeploy {name}"
            )
            wait(client, kind, name)
        packed = archive_of(answer, name) or packed
        aws.call(client, "Delete", kind, name)
        removed.append(kind)
    if packed:
        bucket, key = aws.s3_location(packed)
        aws.client("s3", region).delete_object(Bucket=bucket, Key=key)
    return removed


def wait(client: Any, kind: str, name: str) -> dict[str, Any]:
    """The description of a resource once AWS has done with it.

    botocore's waiters end at a lost network and at throttling (botocore.waiter, WaiterError), while
    an endpoint is created and billed; here AWS is asked again.
    """
    while True:
        try:
            answer = aws.call(client, "Describe", kind, name) or {}
            if answer.get(f"{kind}Status") not in BUSY:
                return answer
        except Exception as error:
            if not aws.transient(error):
                raise
        time.sleep(POLL_S)
