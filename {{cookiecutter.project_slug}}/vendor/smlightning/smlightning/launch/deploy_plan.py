"""What deploying a finished job's model would create in the account, and at what cost.

The model answers in an inference image of AWS's, whose server calls src/predict.py's handlers: on
instances that with Ray Serve, else that with SageMaker's own toolkit (see inference_images.py).
Everything that is created carries one name: an archive of model and code beside the job's own, a
SageMaker model, and an endpoint with its configuration or a transform job.
"""

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, fetch, images, inference_images, instances, price
from smlightning.launch.constants import DEFAULT_INSTANCE
from smlightning.launch.findings import cure_for_unknown_name
from smlightning.launch.follow import describe
from smlightning.launch.inference_images import Server
from smlightning.launch.job import Create
from smlightning.launch.request import with_members
from smlightning.serving import JSON_LINES, PLAIN

HANDLERS = {
    "SAGEMAKER_PROGRAM": "predict.py",
    "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code",
    # For an image of one's own around Ray's: without a config.yaml it starts this.
    "SM_RAYSERVE_APP": "smlightning.ray_serving:app",
}
SERVERLESS_GB = 6  # memory that a serverless endpoint has at most
SERVERLESS_CONCURRENCY = 5  # requests at a time
ASYNCHRONOUS_S = 3600  # that an asynchronous request may take (InvocationTimeoutSeconds)


@dataclass(frozen=True)
class Options:
    """What the user asks for: an endpoint on instances, a serverless one, or a batch transform."""

    instance: str = DEFAULT_INSTANCE
    count: int = 1
    serverless: bool = False
    transform: tuple[str, str] | None = None  # S3 addresses of input and output
    image: str = ""  # for inference; empty: AWS's own for PyTorch
    asynchronous: bool = False  # an endpoint whose requests and answers are files in S3
    create: Create = field(default_factory=Create)  # further members of the requests

    @property
    def server(self) -> Server:
        """Whose layout the archive has."""
        on_instances = not (self.serverless or self.transform)
        return inference_images.server(self.image, on_instances=on_instances)

    @property
    def gpus(self) -> int:
        """Of one host; 1 where their number is not known."""
        known = 0 if self.serverless else instances.gpus(self.instance)
        return 1 if known is None else known


@dataclass(frozen=True)
class Deployment:
    """What is about to be created, and at what cost."""

    name: str
    region: str
    trained: str  # S3 address of the job's own archive; of an uncompressed model its folder
    archive: str  # S3 address of the archive with code, or of the folder with it
    key: str  # KMS key that the job's output is encrypted with; empty: AWS's own
    # Kind → request, in order: Model, then EndpointConfig and Endpoint, or TransformJob.
    requests: dict[str, dict[str, Any]]
    cost: str
    options: Options
    job: dict[str, Any]  # as DescribeTrainingJob tells it
    warning: str = ""
    # S3 address of the folder with an asynchronous endpoint's requests/, answers/ and failures/.
    exchange: str = ""


def plan(job_name: str, region: str, options: Options, folder: str = "deploy") -> Deployment:
    """An endpoint, on instances or serverless, or a batch transform, of the job's model.

    The archive is put into ``folder``, beside the job's own.

    Raises:
        UserError: the options contradict each other or the job, the job has no model, there is no
            input, the model is too large for a serverless endpoint, or a member is wrong.
    """
    refuse_options(options)
    client = aws.client("sagemaker", region)
    job = describe(job_name, client)
    if options.serverless and (job.get("VpcConfig") or job.get("EnableNetworkIsolation")):
        raise UserError(
            f"{job_name} ran in a VPC or isolated, and serverless endpoints cannot",
            "take an --instance",
        )
    trained, size = trained_model(job_name, region, job)
    # An endpoint has its job's name; of transforms there may be several. AWS takes 63 characters.
    name = job_name
    if options.transform:
        name = f"{job_name[:47]}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    archive = f"{beside(trained)}{folder}/{name}/"
    if trained.endswith(".tar.gz") or options.serverless or options.transform:
        archive += "model.tar.gz"  # these take no folder (API_ModelDataSource)
    key = job["OutputDataConfig"].get("KmsKeyId", "")
    requests = {"Model": model_request(job_name, job, archive, options)}
    memory_gb = 0
    if options.transform:
        requests["TransformJob"] = transform_request(name, region, options, *options.transform, key)
    elif options.serverless:
        memory_gb = serverless_memory_gb(size)
        requests |= endpoint_requests(name, serverless_variant(memory_gb))
    else:
        requests |= endpoint_requests(name, instance_variant(options))
    exchange = ""
    if options.asynchronous:
        exchange = beside(trained)
        requests["EndpointConfig"]["AsyncInferenceConfig"] = asynchronous(exchange, key)
    tags = job_tags(client, job)
    requests = {
        kind: with_members(kind, {**body, "Tags": tags}, options.create)
        for kind, body in requests.items()
    }
    image = requests["Model"]["PrimaryContainer"]["Image"]
    return Deployment(
        name=name,
        region=region,
        trained=trained,
        archive=archive,
        key=key,
        requests=requests,
        cost=f"cost    {cost(region, options, memory_gb)}",
        options=options,
        job=job,
        warning=inference_images.warning(image),
        exchange=exchange,
    )


def refuse_options(options: Options) -> None:
    """Refuse what no job's deployment takes, before AWS is asked.

    Raises:
        UserError: with the option, its value and what is expected.
    """
    instance, count = options.instance, options.count
    if options.serverless and (instance, count) != (DEFAULT_INSTANCE, 1):
        raise UserError(
            "--serverless takes no --instance and no --count", "remove them, or --serverless"
        )
    if count < 1:
        raise UserError(f"--count {count} is not a number of instances", "give 1 or more")
    shape = "TransformInstanceType" if options.transform else "ProductionVariantInstanceType"
    known = aws.shape(shape).enum
    if instance not in known:
        raise UserError(
            f"--instance {instance} is not known to the installed botocore",
            f"{cure_for_unknown_name(instance, known)}; if it is new, pip install --upgrade boto3",
        )
    refuse_transform(options.transform)
    if not options.image and instance.startswith(("ml.inf", "ml.trn")):
        raise UserError(
            f"--instance {instance} is for Neuron, which AWS's image for PyTorch here is not",
            "take a CPU or a g instance, or name an image with --image",
        )
    if not options.image and re.match(r"ml\.[a-z]+\d+g", instance):
        raise UserError(
            f"--instance {instance} is Graviton (ARM), which AWS's images are not for",
            "take one of x86",
        )


def refuse_transform(addresses: tuple[str, str] | None) -> None:
    """Refuse what cannot be a batch transform's input or output.

    Raises:
        UserError: it is no address in S3, or has a wildcard.
    """
    for uri in addresses or ():
        if re.search(r"[*?]", uri):  # a policy would take it for one, too
            raise UserError(
                f"--transform {uri} has a wildcard, which S3 takes for a letter",
                "name the folder, or the beginning that its keys share",
            )
        if not aws.s3_uri(uri):
            raise UserError(
                f"--transform {uri} is not an S3 address", 'as in "s3://bucket/folder/"'
            )


def trained_model(job_name: str, region: str, job: dict[str, Any]) -> tuple[str, int]:
    """S3 address and bytes of the job's own archive, or of the folder of an uncompressed model.

    Raises:
        UserError: the job has not completed, or its model is not in S3.
    """
    uri = fetch.address_of(job)
    status = job["TrainingJobStatus"]
    sizes: list[int] = []
    if status in ("Completed", "Stopped") and uri.endswith(("/model.tar.gz", "/")):
        sizes = [item["Size"] for item in fetch.all_objects(uri, aws.client("s3", region))]
    if not sum(sizes):
        raise UserError(
            f"{job_name} is {status} and has no model.tar.gz in S3", "name a job that completed"
        )
    return uri, sum(sizes)


def model_request(
    job_name: str, job: dict[str, Any], archive: str, options: Options
) -> dict[str, Any]:
    """CreateModel: the inference image of the job's registry, with the job's role and network.

    Raises:
        UserError: the job trained in an image of its owner's, or isolated, and no image for
            inference is named.
    """
    image = job["AlgorithmSpecification"]["TrainingImage"]
    region = job["TrainingJobArn"].split(":")[3]
    registry = images.registry_for_inference(image, region)
    if not options.image and not registry:
        raise UserError(
            f"{job_name} trained in {image.partition('/')[2]}, not in AWS's image",
            "name one for inference with --image",
        )
    if not options.image and job.get("EnableNetworkIsolation"):
        raise UserError(
            f"{job_name} ran isolated, and so its model cannot install src/requirements.txt",
            "name an image that holds those packages with --image",
        )
    server = options.server
    environment = dict(HANDLERS)
    if options.serverless:
        environment["SAGEMAKER_MODEL_SERVER_WORKERS"] = "1"
    if options.asynchronous:
        environment |= {
            "RAYSERVE_BACKEND_TIMEOUT": str(ASYNCHRONOUS_S),
            "SAGEMAKER_MODEL_SERVER_TIMEOUT": str(ASYNCHRONOUS_S),
        }
    kept = {key: job[key] for key in ("VpcConfig", "EnableNetworkIsolation") if job.get(key)}
    return {
        **kept,
        "ExecutionRoleArn": job["RoleArn"],
        "PrimaryContainer": {
            "Image": options.image or f"{registry}/{server.gpu if options.gpus else server.cpu}",
            **model_data(archive),
            "Environment": environment,
        },
    }


def model_data(archive: str) -> dict[str, Any]:
    """Members of a container that say where its model is: an archive, or a folder in S3."""
    if not archive.endswith("/"):
        return {"ModelDataUrl": archive}
    source = {"S3Uri": archive, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"ModelDataSource": {"S3DataSource": source}}


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


def asynchronous(folder: str, key: str) -> dict[str, Any]:
    """AsyncInferenceConfig: answers and failures are written below a folder in S3."""
    output = {"S3OutputPath": f"{folder}answers/", "S3FailurePath": f"{folder}failures/"}
    return {"OutputConfig": {**output, "KmsKeyId": key} if key else output}


def beside(trained: str) -> str:
    """The folder in S3 that holds the job's model, an archive or itself a folder."""
    return f"{trained.rstrip('/').rpartition('/')[0]}/"


def instance_variant(options: Options) -> dict[str, Any]:
    """The hosts, with the driver that their image needs."""
    variant = {"InstanceType": options.instance, "InitialInstanceCount": options.count}
    ami = inference_images.ami(options.server, options.instance)
    return {**variant, "InferenceAmiVersion": ami} if ami else variant


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
    name: str, region: str, options: Options, source: str, target: str, key: str
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
        "TransformResources": {"InstanceType": options.instance, "InstanceCount": options.count},
    }


def cost(region: str, options: Options, memory_gb: int) -> str:
    """What the deployment costs, and until when."""
    if options.serverless:
        return (
            f"nothing while nobody asks, {memory_gb} GB by the second while it answers; "
            "aws.amazon.com/sagemaker/pricing"
        )
    hourly = price.per_hour(region, options.instance, "Hosting")
    total = "at a price that AWS does not tell"
    if hourly:
        total = f"{options.count * hourly:,.2f} USD an hour"
    until = "all is answered" if options.transform else "you undeploy it"
    return f"{options.count} × {options.instance}, {total}, until {until}"


def job_tags(client: Any, job: dict[str, Any]) -> list[dict[str, str]]:
    """The job's tags, without AWS's own, which nobody else may set."""
    tags = client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    return [tag for tag in tags if not tag["Key"].startswith("aws:")]
