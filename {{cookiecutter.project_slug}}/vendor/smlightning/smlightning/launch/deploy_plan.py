"""What deploying a finished job's model would create in the account, and at what cost.

The model answers in SageMaker's PyTorch inference image, which calls src/predict.py's handlers.
Everything that is created carries one name: an archive of model and code beside the job's own, a
SageMaker model, and an endpoint with its configuration or a transform job.
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, instances, price
from smlightning.launch.constants import DEFAULT_INSTANCE
from smlightning.launch.findings import cure_for_unknown_name
from smlightning.launch.follow import describe
from smlightning.serving import JSON_LINES, PLAIN

IMAGE = "pytorch-inference:2.6.0-{}-py312"  # the newest inference image in the SDK's own table
HANDLERS = {"SAGEMAKER_PROGRAM": "predict.py", "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code"}
SERVERLESS_GB = 6  # memory that a serverless endpoint has at most
SERVERLESS_CONCURRENCY = 5  # requests at a time


@dataclass(frozen=True)
class Choice:
    """What the user asks for: an endpoint on instances, a serverless one, or a batch transform."""

    instance: str = DEFAULT_INSTANCE
    count: int = 1
    serverless: bool = False
    transform: tuple[str, str] | None = None  # S3 addresses of input and output
    image: str = ""  # for inference; empty: AWS's own for PyTorch


@dataclass(frozen=True)
class Deployment:
    """What is about to be created, and at what cost."""

    name: str
    region: str
    trained: str  # S3 address of the job's own archive
    archive: str  # S3 address of the archive with code
    key: str  # KMS key that the job's output is encrypted with; empty: AWS's own
    # Kind → request, in order: Model, then EndpointConfig and Endpoint, or TransformJob.
    requests: dict[str, dict[str, Any]]
    cost: str


def plan(job_name: str, region: str, choice: Choice) -> Deployment:
    """An endpoint, on instances or serverless, or a batch transform, of the job's model.

    Raises:
        UserError: the choice contradicts itself or the job, the job has no model, there is no
            input, or the model is too large for a serverless endpoint.
    """
    refuse_choice(choice)
    client = aws.client("sagemaker", region)
    job = describe(job_name, client)
    if choice.serverless and (job.get("VpcConfig") or job.get("EnableNetworkIsolation")):
        raise UserError(
            f"{job_name} ran in a VPC or isolated, and serverless endpoints cannot",
            "take an --instance",
        )
    trained, size = trained_model(job_name, region, job)
    # An endpoint has its job's name; of transforms there may be several. AWS takes 63 characters.
    name = job_name
    if choice.transform:
        name = f"{job_name[:47]}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    archive = f"{trained.removesuffix('model.tar.gz')}deploy/{name}/model.tar.gz"
    key = job["OutputDataConfig"].get("KmsKeyId", "")
    requests = {"Model": model_request(job_name, job, archive, choice)}
    memory_gb = 0
    if choice.transform:
        requests["TransformJob"] = transform_request(name, region, choice, *choice.transform, key)
    elif choice.serverless:
        memory_gb = serverless_memory_gb(size)
        requests |= endpoint_requests(name, serverless_variant(memory_gb))
    else:
        variant = {"InstanceType": choice.instance, "InitialInstanceCount": choice.count}
        requests |= endpoint_requests(name, variant)
    tags = job_tags(client, job)
    return Deployment(
        name=name,
        region=region,
        trained=trained,
        archive=archive,
        key=key,
        requests={kind: {**request, "Tags": tags} for kind, request in requests.items()},
        cost=f"cost    {cost(region, choice, memory_gb)}",
    )


def refuse_choice(choice: Choice) -> None:
    """Refuse what no job's deployment takes, before AWS is asked.

    Raises:
        UserError: with the option, its value and what is expected.
    """
    instance, count = choice.instance, choice.count
    if choice.serverless and (instance, count) != (DEFAULT_INSTANCE, 1):
        raise UserError(
            "--serverless takes no --instance and no --count", "remove them, or --serverless"
        )
    if count < 1:
        raise UserError(f"--count {count} is not a number of instances", "give 1 or more")
    shape = "TransformInstanceType" if choice.transform else "ProductionVariantInstanceType"
    known = aws.shape(shape).enum
    if instance not in known:
        raise UserError(
            f"--instance {instance} is not known to the installed botocore",
            f"{cure_for_unknown_name(instance, known)}; if it is new, pip install --upgrade boto3",
        )
    for uri in choice.transform or ():
        if not aws.s3_uri(uri):
            raise UserError(
                f"--transform {uri} is not an S3 address", 'as in "s3://bucket/folder/"'
            )
    if not choice.image and instance.startswith(("ml.inf", "ml.trn")):
        raise UserError(
            f"--instance {instance} is for Neuron, which AWS's image for PyTorch here is not",
            "take a CPU or a g instance, or name an image with --image",
        )
    if not choice.image and re.match(r"ml\.[a-z]+\d+g", instance):
        raise UserError(
            f"--instance {instance} is Graviton (ARM), which AWS's images are not for",
            "take one of x86",
        )


def trained_model(job_name: str, region: str, job: dict[str, Any]) -> tuple[str, int]:
    """S3 address and bytes of the job's own archive.

    Raises:
        UserError: the job has not completed, or its model is not in S3.
    """
    uri = str(job.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""))
    status = job["TrainingJobStatus"]
    archives: list[dict[str, Any]] = []
    if status in ("Completed", "Stopped") and uri.endswith("/model.tar.gz"):
        archives = aws.objects(uri, aws.client("s3", region))
    if not archives:
        raise UserError(
            f"{job_name} is {status} and has no model.tar.gz in S3", "name a job that completed"
        )
    return uri, archives[0]["Size"]


def model_request(
    job_name: str, job: dict[str, Any], archive: str, choice: Choice
) -> dict[str, Any]:
    """CreateModel: the inference image of the job's registry, with the job's role and network.

    Raises:
        UserError: the job trained in an image of its owner's, and none for inference is named.
    """
    registry, _, image = job["AlgorithmSpecification"]["TrainingImage"].partition("/")
    if not choice.image and not image.startswith(("pytorch:", "pytorch-training:")):
        raise UserError(
            f"{job_name} trained in {image}, not in AWS's image",
            "name one for inference with --image",
        )
    on_cpu = choice.serverless or instances.gpus(choice.instance) == 0
    environment = dict(HANDLERS)
    if choice.serverless:
        environment["SAGEMAKER_MODEL_SERVER_WORKERS"] = "1"
    kept = {key: job[key] for key in ("VpcConfig", "EnableNetworkIsolation") if job.get(key)}
    return {
        **kept,
        "ExecutionRoleArn": job["RoleArn"],
        "PrimaryContainer": {
            "Image": choice.image or f"{registry}/{IMAGE.format('cpu' if on_cpu else 'gpu')}",
            "ModelDataUrl": archive,
            "Environment": environment,
        },
    }


def serverless_memory_gb(model_bytes: int) -> int:
    """What a serverless endpoint of a model needs.

    Server, torch and transformers take some 2 GB, and while weights are loaded they are in memory
    twice.

    Raises:
        UserError: it is more than there is.
    """
    memory_gb = math.ceil(2 + 2 * model_bytes / 2**30)
    if memory_gb > SERVERLESS_GB:
        raise UserError(
            f"the model needs some {memory_gb} GB, and a serverless endpoint has {SERVERLESS_GB}",
            "use an instance",
        )
    return memory_gb


def serverless_variant(memory_gb: int) -> dict[str, Any]:
    memory = {"MemorySizeInMB": 1024 * memory_gb, "MaxConcurrency": SERVERLESS_CONCURRENCY}
    return {"ServerlessConfig": memory}


def endpoint_requests(name: str, variant: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """CreateEndpointConfig and CreateEndpoint, with one variant that answers everything."""
    variant = {"VariantName": "all", "ModelName": name, **variant}
    return {
        "EndpointConfig": {"ProductionVariants": [variant]},
        "Endpoint": {"EndpointConfigName": name},
    }


def transform_request(
    name: str, region: str, choice: Choice, source: str, target: str, key: str
) -> dict[str, Any]:
    """CreateTransformJob for text files, a record a line: plain, or JSON lines as their names say.

    Raises:
        UserError: there are no files.
    """
    files = aws.objects(source, aws.client("s3", region))
    if not files:
        raise UserError(f"there is no data at {source}", "upload it, or correct the address")
    is_json = files[0]["Key"].endswith((".jsonl", ".jsonlines"))
    output = {"S3OutputPath": target, "Accept": JSON_LINES, "AssembleWith": "Line"}
    if key:
        output["KmsKeyId"] = key
    return {
        "ModelName": name,
        "BatchStrategy": "MultiRecord",  # as many lines as fit into one request
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": source}},
            "ContentType": JSON_LINES if is_json else PLAIN,
            "SplitType": "Line",
        },
        "TransformOutput": output,
        "TransformResources": {"InstanceType": choice.instance, "InstanceCount": choice.count},
    }


def cost(region: str, choice: Choice, memory_gb: int) -> str:
    """What the deployment costs, and until when."""
    if choice.serverless:
        return (
            f"nothing while nobody asks, {memory_gb} GB by the second while it answers; "
            "aws.amazon.com/sagemaker/pricing"
        )
    hourly = price.per_hour(region, choice.instance, "Hosting")
    total = "at a price that AWS does not tell"
    if hourly:
        total = f"{choice.count * hourly:,.2f} USD an hour"
    until = "all is answered" if choice.transform else "you undeploy it"
    return f"{choice.count} × {choice.instance}, {total}, until {until}"


def job_tags(client: Any, job: dict[str, Any]) -> list[dict[str, str]]:
    """The job's tags, without AWS's own, which nobody else may set."""
    tags = client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    return [tag for tag in tags if not tag["Key"].startswith("aws:")]
