"""Whether what a request names is there: image, file systems, keys, secrets, server, plan."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from smlightning.launch import aws, images, resources
from smlightning.launch.account import table
from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error, skipped, warning

# Beginnings and ends of AWS's codes for what does not exist, of seven services.
ABSENT = ("NotFound", "DoesNotExist", "Validation", "Invalid")
MLFLOW_ROLE = "SAGEMAKER_MLFLOW_ASSUME_ROLE_ARN"  # variable by which the plug-in takes on a role


def named(context: Context) -> Iterator[Finding]:
    """Each resource is looked up, where the caller may; one that is not there is an error."""
    yield from image(context)
    yield from file_systems(context)
    yield from keys(context)
    yield from secrets(context)
    yield from server(context)
    yield from plan(context)


def ask(
    key: str, what: str, client: Any, operation: str, **parameters: Any
) -> tuple[dict[str, Any], list[Finding]]:
    """AWS's answer, and the finding where it knows of no such thing, or may not be asked for it.

    Args:
        key: of job.toml.
        what: is looked up, as it is named in the finding.
        client: of boto3.
        operation: its method.
        parameters: of the operation.
    """
    from botocore.exceptions import ClientError

    try:
        return getattr(client, operation)(**parameters), []
    except ClientError as refusal:
        if aws.denied(refusal):
            problem = f"{what} was not looked up: these credentials may not"
            return {}, [skipped(key, problem, "see that it is there")]
        if any(word in aws.code(refusal) for word in ABSENT):
            return {}, [absent(key, what)]
        raise


def absent(key: str, what: str) -> Finding:
    return error(key, f"{what} does not exist", "correct it, or create it")


def image(context: Context) -> Iterator[Finding]:
    """An image in an own ECR; AWS's registries answer no such question."""
    uri = str(context.request["AlgorithmSpecification"].get("TrainingImage", ""))
    address = images.ECR.match(uri)
    if not address or images.aws_image(uri) or address[2] != context.job.region:
        return
    digest = uri.partition("@")[2]
    reference = {"imageDigest": digest} if digest else {"imageTag": address[4] or "latest"}
    _, problems = ask(
        "image",
        f"{uri.partition('/')[2]} in ECR of account {address[1]}",
        context.client("ecr"),
        "describe_images",
        registryId=address[1],
        repositoryName=address[3],
        imageIds=[reference],
    )
    for problem in problems:
        if context.job.registry and problem.level == "error":  # a pull-through cache fills itself
            cure = "a mirror has to hold it; a pull-through cache gets it at the first pull"
            problem = replace(problem, level="warning", cure=cure)
        yield problem


def file_systems(context: Context) -> Iterator[Finding]:
    """File systems of the channels, FSx for Lustre or EFS."""
    for channel in context.request.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource")
        if not system:
            continue
        name, kind = system.get("FileSystemId", ""), system.get("FileSystemType", "")
        key, operation = f"channels.{channel['ChannelName']}", "describe_file_systems"
        if kind == "EFS":
            client = context.client("efs")
            _, problems = ask(key, f"EFS {name}", client, operation, FileSystemId=name)
        else:
            client = context.client("fsx")
            _, problems = ask(key, f"FSx {name}", client, operation, FileSystemIds=[name])
        yield from problems


def keys(context: Context) -> Iterator[Finding]:
    """KMS keys, by ID, ARN or alias, that are enabled."""
    output, resources = context.request["OutputDataConfig"], context.request["ResourceConfig"]
    members = {
        "request.OutputDataConfig.KmsKeyId": output.get("KmsKeyId"),
        "request.ResourceConfig.VolumeKmsKeyId": resources.get("VolumeKmsKeyId"),
    }
    for key, name in members.items():
        if not name:
            continue
        client = context.client("kms")
        answer, problems = ask(key, f"KMS key {name}", client, "describe_key", KeyId=name)
        yield from problems
        state = answer.get("KeyMetadata", {}).get("KeyState", "Enabled")
        if state != "Enabled":
            yield error(key, f"KMS key {name} is {state}", "enable it, or name another")


def secrets(context: Context) -> Iterator[Finding]:
    """Secrets in Secrets Manager and Parameter Store; their values are not read."""
    for key, secret in table.secret_keys(context.job):
        name = secret.name
        if not secret.is_parameter:
            client = aws.client("secretsmanager", secret.region or context.job.region)
            _, problems = ask(key, f"secret {name}", client, "describe_secret", SecretId=name)
            yield from problems
            continue
        answer, problems = ask(
            key,
            f"parameter {name}",
            context.client("ssm"),
            "describe_parameters",
            ParameterFilters=[{"Key": "Name", "Values": [name]}],
        )
        yield from problems
        if answer.get("Parameters") == []:
            yield absent(key, f"parameter {name}")


def server(context: Context) -> Iterator[Finding]:
    """The MLflow tracking server or app; another account's cannot be asked for."""
    arn = context.job.mlflow
    if not arn:
        return
    _, _, _, region, account, name = arn.split(":", 5)
    if account != context.account:
        problem = f"it is of account {account}, and this is {context.account}"
        cure = f"set environment.{MLFLOW_ROLE} to a role there that this job's may take on"
        if MLFLOW_ROLE in context.job.environment:
            cure = f"see that the job's role may take on the one of environment.{MLFLOW_ROLE}"
        yield warning("mlflow", problem, cure)
        return
    client = aws.client("sagemaker", region)
    if name.startswith("mlflow-tracking-server/"):
        operation = "describe_mlflow_tracking_server"
        name = name.partition("/")[2]
        _, problems = ask("mlflow", arn, client, operation, TrackingServerName=name)
    else:
        _, problems = ask("mlflow", arn, client, "describe_mlflow_app", Arn=arn)
    yield from problems


def plan(context: Context) -> Iterator[Finding]:
    """Training plans, which reserve capacity of the job's instance type."""
    for member, arn, kinds in resources.plans(context.request["ResourceConfig"]):
        key, client = f"request.{member}", context.client("sagemaker")
        name, operation = arn.rpartition("/")[2], "describe_training_plan"
        what = f"training plan {name}"
        answer, problems = ask(key, what, client, operation, TrainingPlanName=name)
        yield from problems
        capacities = answer.get("ReservedCapacitySummaries", [])
        reserved = {capacity["InstanceType"] for capacity in capacities}
        other = [kind for kind in kinds if kind not in reserved]
        if reserved and other:
            problem = f"{what} is for {' and '.join(sorted(reserved))}, not for {other[0]}"
            yield error(key, problem, "name a plan for that type, or take the plan's type")
