"""Creating a planned deployment, and removing it again, also after a step that failed."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.files import ADAPTER_CONFIG
from smlightning.launch import aws
from smlightning.launch.deploy_plan import Deployment
from smlightning.launch.fetch import all_objects, download_folder
from smlightning.launch.inference_images import RAY
from smlightning.launch.model_archive import CODE, TRAINED, add_code, check_adapter, pack
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
    from botocore.exceptions import ClientError

    client = aws.client("sagemaker", deployment.region)
    name = deployment.name
    if any(aws.call(client, "Describe", kind, name) for kind in deployment.requests):
        raise UserError(
            f"{name} is deployed already",
            f"remove it first: python -m smlightning undeploy {name}",
        )
    status, is_ours = "", True
    try:
        upload(deployment, src)
        for number, (kind, request) in enumerate(deployment.requests.items()):
            try:
                aws.call(client, "Create", kind, name, **request)
            except ClientError as error:  # deployed by somebody else meanwhile
                is_ours = number > 0 or "already exist" not in str(error)
                raise
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
        if status != "InService" and is_ours:  # a transform's model and archive serve it alone
            region = deployment.region
            clean_up(
                lambda: remove(name, region, deployment.archive),
                f"{name} may be left, and billed: "
                f"python -m smlightning undeploy {name} --region {region}",
            )
    return next_step(deployment)


def next_step(deployment: Deployment) -> str:
    """How to get answers of what was deployed."""
    transform = deployment.requests.get("TransformJob")
    if transform:
        return f"answers {transform['TransformOutput']['S3OutputPath']}, a line for each line"
    if deployment.exchange:
        return (
            f"ask it  aws sagemaker-runtime invoke-endpoint-async --region {deployment.region} "
            f"--endpoint-name {deployment.name} --content-type {PLAIN} "
            f"--input-location {deployment.exchange}requests/FILE; "
            f"it answers below {deployment.exchange}answers/"
        )
    return (
        f"ask it  aws sagemaker-runtime invoke-endpoint --region {deployment.region} "
        f"--endpoint-name {deployment.name} --content-type {PLAIN} "
        "--cli-binary-format raw-in-base64-out --body 'a text' answer.json"
    )


def upload(deployment: Deployment, src: Path) -> None:
    """Put model and code beside the job's own model, encrypted as that is."""
    s3 = aws.client("s3", deployment.region)
    encryption = None
    if deployment.key:
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": deployment.key}
    if deployment.archive.endswith("/"):
        upload_folder(deployment, src, s3, encryption)
        return
    with tempfile.TemporaryDirectory() as folder:
        trained, packed = Path(folder, "trained"), Path(folder, "packed")
        if deployment.trained.endswith("/"):
            download_folder(s3, deployment.trained, trained)
        else:
            s3.download_file(*aws.s3_location(deployment.trained), str(trained))
        pack(trained, packed, src, deployment.options.server, deployment.options.gpus)
        s3.upload_file(str(packed), *aws.s3_location(deployment.archive), ExtraArgs=encryption)


def upload_folder(
    deployment: Deployment, src: Path, s3: Any, encryption: dict[str, str] | None
) -> None:
    """Copy an uncompressed model within S3, and add the code."""
    bucket, prefix = aws.s3_location(deployment.archive)
    source, trained = aws.s3_location(deployment.trained)
    place = f"{prefix}{TRAINED}/" if deployment.options.server is RAY else prefix
    objects = list(all_objects(deployment.trained, s3))
    adapter = trained + ADAPTER_CONFIG
    if any(item["Key"] == adapter for item in objects):
        check_adapter(s3.get_object(Bucket=source, Key=adapter)["Body"].read())
    for item in objects:
        name = item["Key"].removeprefix(trained)
        if name and not name.startswith(f"{CODE}/"):  # as `add_code` replaces it
            origin = {"Bucket": source, "Key": item["Key"]}
            s3.copy(origin, bucket, place + name, ExtraArgs=encryption)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        add_code(folder, src, deployment.options.server, deployment.options.gpus)
        for path in sorted(file for file in folder.rglob("*") if file.is_file()):
            key = prefix + path.relative_to(folder).as_posix()
            s3.upload_file(str(path), bucket, key, ExtraArgs=encryption)


def clean_up(remove: Callable[[], Any], left: str) -> None:
    """Remove what a failed step has created; print what is left if that fails, too.

    The first error is the one to report, so this raises none, but for Ctrl-C.
    """
    try:
        remove()
    except Exception as problem:
        print(f"{left} ({aws.explain(problem).problem})", file=sys.stderr)
    except BaseException:
        print(left, file=sys.stderr)
        raise


def undeploy(name: str, region: str) -> list[str]:
    """Delete a deployment that `deploy` created; the kinds that there were.

    Raises:
        UserError: the name is somebody else's.
    """
    client = aws.client("sagemaker", region)
    model = aws.call(client, "Describe", "Model", name) or {}
    if archive_of(model, name):  # created first and removed last, it tells whose the others are
        return remove(name, region)
    if model or any(
        aws.call(client, "Describe", kind, name) for kind in ("Endpoint", "EndpointConfig")
    ):
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
        if kind == "Model":  # which names the archive, and so goes after it
            remove_objects(archive_of(answer, name) or packed, region)
        aws.call(client, "Delete", kind, name)
        removed.append(kind)
    if "Model" not in removed:
        remove_objects(packed, region)
    return removed


def remove_objects(packed: str, region: str) -> None:
    """Delete the archive, or the folder, that `deploy` put into S3; empty: there is none."""
    if not packed:
        return
    s3 = aws.client("s3", region)
    bucket, key = aws.s3_location(packed)
    keys = [key]
    if packed.endswith("/"):
        keys = [item["Key"] for item in all_objects(packed, s3)]
    for name in keys:
        s3.delete_object(Bucket=bucket, Key=name)


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
