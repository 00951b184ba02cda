"""The requests that deploy a finished job's model on a real-time endpoint, and their cost.

The model answers in AWS's inference image with Ray Serve, which calls src/predict.py's handlers.
Everything has the job's name: a copy of the model with its code, in S3 next to the job's own, a
SageMaker model, an endpoint and its configuration.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.follow import fetch
from smlightning_sagemaker.follow.follow import describe
from smlightning_sagemaker.job import aws, images, inference_images, instances, price
from smlightning_sagemaker.job.constants import DEFAULT_INSTANCE
from smlightning_sagemaker.job.job import Create
from smlightning_sagemaker.job.request import with_members

HANDLERS = {
    # Your own image with Ray Serve starts this application if there is no config.yaml.
    "SM_RAYSERVE_APP": "smlightning.ray_serving:app",
}


@dataclass(frozen=True)
class Options:
    """The user's choices for an endpoint."""

    instance: str = DEFAULT_INSTANCE
    count: int = 1
    image: str = ""  # for inference, with Ray Serve; empty: AWS's own
    create: Create = field(default_factory=Create)  # further members of the requests

    @property
    def gpus(self) -> int:
        """GPUs of one host; 1 if their number is unknown."""
        known = instances.gpus(self.instance)
        return 1 if known is None else known


@dataclass(frozen=True)
class Deployment:
    """Everything that deploy creates."""

    name: str
    region: str
    trained: str  # S3 address of the job's model: an archive, or a folder that ends in "/"
    archive: str  # S3 address of model and code: an archive or a folder, as the job's model
    key: str  # KMS key of the job's output; empty: AWS's own
    requests: dict[str, dict[str, Any]]  # kind → request, in the order of their creation
    cost: str
    options: Options


def plan(job_name: str, region: str, options: Options) -> Deployment:
    """Plan the endpoint of a job's model.

    Raises:
        UserError: the options do not fit the job, the job has no model, or a member is wrong.
    """
    check_processor(options)
    client = aws.client("sagemaker", region)
    job = describe(job_name, client)
    trained = trained_model(job_name, region, job)
    output = trained.rstrip("/").rpartition("/")[0]
    archive = f"{output}/deploy/{job_name}/"
    if not trained.endswith("/"):
        archive += "model.tar.gz"
    variant = {
        "VariantName": "all",
        "ModelName": job_name,
        "InstanceType": options.instance,
        "InitialInstanceCount": options.count,
    }
    ami = inference_images.ami(options.instance)
    if ami and is_ray(options.image):
        variant["InferenceAmiVersion"] = ami
    requests = {
        "Model": model_request(job_name, job, archive, options),
        "EndpointConfig": {"ProductionVariants": [variant]},
        "Endpoint": {"EndpointConfigName": job_name},
    }
    tags = job_tags(client, job)
    return Deployment(
        name=job_name,
        region=region,
        trained=trained,
        archive=archive,
        key=job["OutputDataConfig"].get("KmsKeyId", ""),
        requests={
            kind: with_members(kind, {**body, "Tags": tags}, options.create)
            for kind, body in requests.items()
        },
        cost=f"cost    {cost(region, options)}",
        options=options,
    )


def is_ray(image: str) -> bool:
    """Whether an inference image is AWS's with Ray Serve."""
    return not image or re.search(r"(^|/)ray[:@]", image) is not None


def check_processor(options: Options) -> None:
    """Raise UserError if AWS's image has no build for the processor of the instance."""
    instance = options.instance
    if not options.image and re.match(r"ml\.(inf|trn|[a-z]+\d+g)", instance):
        raise UserError(
            f"--instance {instance} has a Neuron or Graviton (ARM) processor, and AWS's image has "
            "no build for it",
            "use an instance with x86 CPUs, or pass an --image",
        )


def trained_model(job_name: str, region: str, job: dict[str, Any]) -> str:
    """S3 address of the job's model: an archive, or a folder that ends in "/".

    Raises:
        UserError: the job has not completed, or its model is not in S3.
    """
    uri = fetch.address_of(job)
    status = job["TrainingJobStatus"]
    found = False
    if status in ("Completed", "Stopped") and uri.endswith(("/model.tar.gz", "/")):
        objects = aws.all_objects(uri, aws.client("s3", region))
        found = any(item["Size"] for item in objects)
    if not found:
        raise UserError(
            f"{job_name} is {status} and has no model.tar.gz in S3", "use a job that completed"
        )
    return uri


def model_request(
    job_name: str, job: dict[str, Any], archive: str, options: Options
) -> dict[str, Any]:
    """CreateModel: the inference image of the job's registry, with the job's role and network.

    Raises:
        UserError: the job trained isolated or in the user's image, and --image is missing.
    """
    image = job["AlgorithmSpecification"]["TrainingImage"]
    registry = images.registry_for_inference(image, job["TrainingJobArn"].split(":")[3])
    if not options.image and not registry:
        raise UserError(
            f"{job_name} trained in {image.partition('/')[2]}, not in AWS's image",
            "pass an image for inference with --image",
        )
    if not options.image and job.get("EnableNetworkIsolation"):
        raise UserError(
            f"{job_name} ran with network isolation, so its endpoint cannot install packages",
            "pass --image with an image that has those of src/requirements.txt",
        )
    by_aws = f"{registry}/{inference_images.GPU if options.gpus else inference_images.CPU}"
    container = {"Image": options.image or by_aws, "Environment": dict(HANDLERS)}
    if archive.endswith("/"):
        source = {"S3Uri": archive, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    else:
        container["ModelDataUrl"] = archive
    kept = {key: job[key] for key in ("VpcConfig", "EnableNetworkIsolation") if job.get(key)}
    return {**kept, "ExecutionRoleArn": job["RoleArn"], "PrimaryContainer": container}


def cost(region: str, options: Options) -> str:
    """The line with the cost of the endpoint."""
    hourly = price.per_hour(region, options.instance, "Hosting")
    total = f"{options.count * hourly:,.2f} USD an hour" if hourly else "at an unknown price"
    return f"{options.count} × {options.instance}, {total}, until you undeploy it"


def job_tags(client: Any, job: dict[str, Any]) -> list[dict[str, str]]:
    """The job's tags, without AWS's own, which nobody else may set."""
    tags = client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    return [tag for tag in tags if not tag["Key"].startswith("aws:")]
