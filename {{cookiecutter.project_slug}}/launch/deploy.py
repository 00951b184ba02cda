"""Deploy a finished job's model as an endpoint or for a batch transform, and remove it again. Needs no job.toml.

The model answers in SageMaker's PyTorch inference image, which calls the handlers of src/predict.py. What is made
carries one name: an archive of model and code beside the job's own, a SageMaker model, and an endpoint with its
configuration or a transform job. After a step that fails all of it is removed again.
"""

import math
import re
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launch import SRC, account, aws, jobs, profiles
from launch.findings import near
from launch.follow import describe
from runtime.report import UserError
from runtime.serving import JSON_LINES, PLAIN

IMAGE = "pytorch-inference:2.6.0-{}-py312"  # the newest inference image in the SDK's own table
HANDLERS = {"SAGEMAKER_PROGRAM": "predict.py", "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code"}
BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack", "InProgress", "Stopping")
POLL_S = 15.0


@dataclass(frozen=True)
class Deployment:
    """What is about to be made, and at what cost."""

    name: str
    region: str
    trained: str  # S3 address of the job's own archive
    archive: str  # S3 address of the archive with code
    key: str  # KMS key that the job's output is encrypted with; empty: AWS's own
    requests: dict[str, dict[str, Any]]  # in order: Model, then EndpointConfig and Endpoint, or TransformJob
    cost: str


def plan(
    job_name: str, region: str, instance: str, count: int, serverless: bool, transform: list[str] | None, image: str
) -> Deployment:
    """An endpoint, on instances or serverless, or the transform of [input, output] in S3.

    Raises:
        UserError: the job has no model, there is no input, or the model is too large for a serverless endpoint.
    """
    refuse_options(instance, count, transform)
    if not image and re.match(r"ml\.[a-z]+\d+g", instance):
        raise UserError(f"--instance {instance} is Graviton (ARM), which AWS's images are not for; take one of x86")
    client = aws.client("sagemaker", region)
    job = describe(job_name, client)
    if serverless and (job.get("VpcConfig") or job.get("EnableNetworkIsolation")):
        raise UserError(f"{job_name} ran in a VPC or isolated, and serverless endpoints cannot; take an --instance")
    trained = job.get("ModelArtifacts", {}).get("S3ModelArtifacts", "")
    ended = job["TrainingJobStatus"] in ("Completed", "Stopped") and trained.endswith("/model.tar.gz")
    models = aws.objects(trained, aws.client("s3", region)) if ended else []
    if not models:
        status = job["TrainingJobStatus"]
        raise UserError(f"{job_name} is {status} and has no model.tar.gz in S3; name a job that completed")
    key = job["OutputDataConfig"].get("KmsKeyId", "")
    registry, _, own = job["AlgorithmSpecification"]["TrainingImage"].partition("/")
    if not image and not own.startswith(("pytorch:", "pytorch-training:")):
        raise UserError(f"{job_name} trained in {own}, not in AWS's image; name one for inference with --image")
    device = "cpu" if serverless or profiles.gpus(instance) == 0 else "gpu"
    # An endpoint has its job's name; of transforms there may be several. AWS takes 63 characters.
    name = f"{job_name[:47]}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if transform else job_name
    archive = f"{trained.removesuffix('model.tar.gz')}deploy/{name}/model.tar.gz"
    model = {key: job[key] for key in ("VpcConfig", "EnableNetworkIsolation") if job.get(key)} | {
        "ExecutionRoleArn": job["RoleArn"],
        "PrimaryContainer": {
            "Image": image or f"{registry}/{IMAGE.format(device)}",
            "ModelDataUrl": archive,
            "Environment": HANDLERS | ({"SAGEMAKER_MODEL_SERVER_WORKERS": "1"} if serverless else {}),
        },
    }
    if transform:
        requests, until = {"TransformJob": transform_job(name, region, instance, count, *transform)}, "all is answered"
        requests["TransformJob"]["TransformOutput"] |= {"KmsKeyId": key} if key else {}
    else:
        # Server, torch and transformers take some 2 GB, and while weights are loaded they are in memory twice.
        gb = math.ceil(2 + 2 * models[0]["Size"] / 2**30) if serverless else 0
        requests, until = endpoint(name, instance, count, gb), "you undeploy it"
    hourly = None if serverless else account.price(region, instance, "Hosting")
    price = f"{count * hourly:,.2f} USD an hour" if hourly else "at a price that AWS does not tell"
    cost = f"{count} × {instance}, {price}, until {until}"
    if serverless:
        cost = f"nothing while nobody asks, {gb} GB by the second while it answers; aws.amazon.com/sagemaker/pricing"
    found = client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    tags = [tag for tag in found if not tag["Key"].startswith("aws:")]
    made = {kind: {**request, "Tags": tags} for kind, request in {"Model": model, **requests}.items()}
    return Deployment(name, region, trained, archive, key, made, f"cost    {cost}")


def refuse_options(instance: str, count: int, transform: list[str] | None) -> None:
    """Raises UserError for what no job's deployment takes."""
    if count < 1:
        raise UserError(f"--count {count} is not a number of instances; give 1 or more")
    known = aws.shape("TransformInstanceType" if transform else "ProductionVariantInstanceType").enum
    if instance not in known:
        cure = f"{near(instance, known)}; if it is new, pip install --upgrade boto3"
        raise UserError(f"--instance {instance} is not known to the installed botocore; {cure}")
    for uri in transform or ():
        if not aws.s3_uri(uri):
            raise UserError(f'--transform {uri} is not an S3 address; as in "s3://bucket/folder/"')


def endpoint(name: str, instance: str, count: int, memory_gb: int) -> dict[str, dict[str, Any]]:
    """Configuration and endpoint: serverless with so much memory, or on instances where that is 0."""
    if memory_gb > 6:
        raise UserError(f"the model needs some {memory_gb} GB, and a serverless endpoint has 6; use an instance")
    serverless = {"ServerlessConfig": {"MemorySizeInMB": 1024 * memory_gb, "MaxConcurrency": 5}}
    place = serverless if memory_gb else {"InstanceType": instance, "InitialInstanceCount": count}
    variant = {"VariantName": "all", "ModelName": name, **place}
    return {"EndpointConfig": {"ProductionVariants": [variant]}, "Endpoint": {"EndpointConfigName": name}}


def transform_job(name: str, region: str, instance: str, count: int, source: str, target: str) -> dict[str, Any]:
    """The batch transform of text files, a record a line: plain, or JSON lines as their names say."""
    found = aws.objects(source, aws.client("s3", region))
    if not found:
        raise UserError(f"there is no data at {source}; upload it, or correct the address")
    kind = JSON_LINES if found[0]["Key"].endswith((".jsonl", ".jsonlines")) else PLAIN
    data = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": source}}
    return {
        "ModelName": name,
        "BatchStrategy": "MultiRecord",  # as many lines as fit into one request
        "TransformInput": {"DataSource": data, "ContentType": kind, "SplitType": "Line"},
        "TransformOutput": {"S3OutputPath": target, "Accept": JSON_LINES, "AssembleWith": "Line"},
        "TransformResources": {"InstanceType": instance, "InstanceCount": count},
    }


def deploy(made: Deployment) -> str:
    """Make it; wait until the endpoint answers or the transform has ended, and say how to go on.

    Raises:
        UserError: it exists already, or AWS gave up on it, for the reason it gives.
    """
    client, kind, status = aws.client("sagemaker", made.region), list(made.requests)[-1], ""
    if any(aws.call(client, "Describe", each, made.name) for each in made.requests):
        raise UserError(f"{made.name} is deployed already; remove it first: python -m launch undeploy {made.name}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            s3, old, new = aws.client("s3", made.region), Path(folder, "old"), Path(folder, "new")
            s3.download_file(*aws.s3_location(made.trained), str(old))
            pack(old, new)
            encrypted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": made.key} if made.key else None
            s3.upload_file(str(new), *aws.s3_location(made.archive), ExtraArgs=encrypted)
        for each, request in made.requests.items():
            aws.call(client, "Create", each, made.name, **request)
        print(f"making  {made.name}, which takes some minutes", flush=True)
        found = wait(client, kind, made.name)
        status = found.get(f"{kind}Status", "removed meanwhile")
        if status not in ("InService", "Completed"):
            reason = found.get("FailureReason", "AWS gives no reason")
            raise UserError(f"{made.name} is {status}: {reason}; see its log in CloudWatch, then deploy again")
    finally:
        if status != "InService":  # a transform's model and archive serve it alone
            try:
                remove(made.name, made.region, made.archive)
            except BaseException:
                again = f"python -m launch undeploy {made.name} --region {made.region}"
                print(f"{made.name} may be left, and billed: {again}", file=sys.stderr)
                raise
    if kind == "TransformJob":
        return f"answers {made.requests[kind]['TransformOutput']['S3OutputPath']}, a line for each line"
    ask = f"aws sagemaker-runtime invoke-endpoint --region {made.region} --endpoint-name {made.name}"
    return f"ask it  {ask} --content-type {PLAIN} --cli-binary-format raw-in-base64-out --body 'a text' answer.json"


def pack(trained: Path, packed: Path) -> None:
    """Write the job's archive again with src/ as its folder code/, where the inference image looks for handlers."""
    with tempfile.TemporaryDirectory(dir=packed.parent) as folder:
        jobs.unpack(trained, Path(folder))
        code = Path(folder, "code")
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(SRC, code, ignore=shutil.ignore_patterns("train.py", "__pycache__", ".*"))
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:  # weights hardly compress
            tar.add(folder, ".")


def undeploy(name: str, region: str) -> list[str]:
    """Delete a deployment that `deploy` made, and say what there was of it; raises UserError for anybody else's."""
    client = aws.client("sagemaker", region)
    model = aws.call(client, "Describe", "Model", name) or {}
    own = model.get("PrimaryContainer", {}).get("ModelDataUrl", "").endswith(f"/deploy/{name}/model.tar.gz")
    if not own and (model or aws.call(client, "Describe", "Endpoint", name)):
        raise UserError(f"{name} in {region} was not made by deploy; remove it in the SageMaker console")
    return remove(name, region)


def remove(name: str, region: str, archive: str = "") -> list[str]:
    """Delete what there is of a deployment, and say what that was."""
    client, removed = aws.client("sagemaker", region), []
    for kind in ("TransformJob", "Endpoint", "EndpointConfig", "Model"):
        if not (found := aws.call(client, "Describe", kind, name)):
            continue
        if kind == "TransformJob":  # AWS keeps its record
            if found["TransformJobStatus"] == "InProgress":
                aws.call(client, "Stop", kind, name)
            continue
        if found.get("EndpointStatus") in BUSY:
            print(f"waiting until AWS can remove {name}; else it is billed until: python -m launch undeploy {name}")
            wait(client, kind, name)
        uri = found.get("PrimaryContainer", {}).get("ModelDataUrl", "")
        archive = uri if uri.endswith(f"/deploy/{name}/model.tar.gz") else archive
        aws.call(client, "Delete", kind, name)
        removed.append(kind)
    if archive:
        bucket, key = aws.s3_location(archive)
        aws.client("s3", region).delete_object(Bucket=bucket, Key=key)
    return removed


def wait(client: Any, kind: str, name: str) -> dict[str, Any]:
    """Its description once AWS has done with it; what the network loses meanwhile is asked again."""
    while True:
        try:
            found = aws.call(client, "Describe", kind, name) or {}
            if found.get(f"{kind}Status") not in BUSY:
                return found
        except Exception as error:
            if not aws.transient(error):
                raise
        time.sleep(POLL_S)
