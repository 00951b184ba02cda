"""Whether what a request names is there, and in a state in which the job can use it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from smlightning.launch import aws, images, resources
from smlightning.launch.account import network, table
from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error, refused, skipped, warning

# Beginnings and ends of AWS's codes for what does not exist, of seven services.
ABSENT = ("NotFound", "DoesNotExist", "Validation", "Invalid")
MLFLOW_ROLE = "SAGEMAKER_MLFLOW_ASSUME_ROLE_ARN"  # variable by which the plug-in takes on a role


@dataclass(frozen=True)
class Kind:
    """A kind of resource: how AWS is asked for one, and what its answer means for a job.

    Attributes:
        service: of boto3.
        operation: its method.
        state: where the answer has the resource's state, in JMESPath; empty: nowhere.
        usable: states in which a job can use it.
        lost: states in which it cannot, and does not soon; any other state passes by itself.
        cure: for those.
    """

    service: str
    operation: str
    state: str = ""
    usable: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    cure: str = "name another"


DELETED = "scheduled for deletion"  # AWS has no state of a secret, but the date of its deletion
IMAGE = Kind("ecr", "describe_images")
PARAMETER = Kind("ssm", "describe_parameters")
MOUNT_TARGETS = Kind("efs", "describe_mount_targets")
SUBNETS = Kind("ec2", "describe_subnets")
# The states are botocore's enumerations (tests/package/launch/test_account_resources.py).
LUSTRE = Kind(
    "fsx",
    "describe_file_systems",
    state="FileSystems[0].Lifecycle",
    usable=("AVAILABLE", "UPDATING", "MISCONFIGURED"),
    lost=("DELETING", "FAILED", "MISCONFIGURED_UNAVAILABLE"),
)
ELASTIC = Kind(
    "efs",
    "describe_file_systems",
    state="FileSystems[0].LifeCycleState",
    usable=("available", "updating"),
    lost=("deleting", "deleted", "error"),
)
KEY = Kind(
    "kms",
    "describe_key",
    state="KeyMetadata.KeyState",
    usable=("Enabled",),
    lost=("Disabled", "PendingDeletion", "PendingImport", "PendingReplicaDeletion", "Unavailable"),
    cure="enable it, or name another",
)
SECRET = Kind(
    "secretsmanager",
    "describe_secret",
    state=f"DeletedDate && '{DELETED}'",
    lost=(DELETED,),
    cure="keep it (aws secretsmanager restore-secret), or name another",
)
SERVER = Kind(
    "sagemaker",
    "describe_mlflow_tracking_server",
    state="TrackingServerStatus",
    usable=("Created", "Started", "Updated", "UpdateFailed", "MaintenanceComplete"),
    lost=("Stopping", "Stopped", "StartFailed", "CreateFailed", "Deleting"),
    cure="start it (aws sagemaker start-mlflow-tracking-server), or name another",
)
APP = Kind(
    "sagemaker",
    "describe_mlflow_app",
    state="Status",
    usable=("Created", "Updated", "UpdateFailed"),
    lost=("CreateFailed", "Deleting", "Deleted"),
)
# A job that names a plan which has not begun waits for it
# (https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-details-using-api-cli-sdk.html).
PLAN = Kind(
    "sagemaker",
    "describe_training_plan",
    state="Status",
    usable=("Scheduled", "Active"),
    lost=("Expired", "Failed"),
)


def named(context: Context) -> Iterator[Finding]:
    """Each resource is looked up, where the caller may, and its answer is judged."""
    yield from image(context)
    yield from file_systems(context)
    yield from keys(context)
    yield from secrets(context)
    yield from server(context)
    yield from plan(context)


def ask(
    context: Context, key: str, what: str, kind: Kind, region: str = "", **parameters: Any
) -> tuple[dict[str, Any], list[Finding]]:
    """AWS's answer, and a finding where the resource is absent, cannot be used, or is not shown.

    Args:
        context: of the job.
        key: of job.toml.
        what: is looked up, as a finding names it.
        kind: of resource.
        region: where it is; empty: the job's.
        parameters: of the operation.
    """
    import jmespath
    from botocore.exceptions import ClientError

    try:
        answer: dict[str, Any] = context.ask(kind.service, kind.operation, region, **parameters)
    except ClientError as refusal:
        if aws.denied(refusal):
            problem = f"{what} was not looked up: these credentials may not"
            return {}, [skipped(key, problem, "see that it is there")]
        if any(word in aws.code(refusal) for word in ABSENT):
            return {}, [absent(key, what)]
        raise
    state = jmespath.search(kind.state, answer) if kind.state else None
    if state in kind.lost:
        return answer, [error(key, f"{what} is {state}", kind.cure)]
    if state is not None and state not in kind.usable:
        return answer, [
            warning(key, f"{what} is {state}", "see that it is ready when the job starts")
        ]
    return answer, []


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
        context,
        "image",
        f"{uri.partition('/')[2]} in ECR of account {address[1]}",
        IMAGE,
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
    """File systems of the channels, FSx for Lustre or EFS, which the job's subnets reach."""
    for channel in context.request.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource")
        if not system:
            continue
        check = elastic if system.get("FileSystemType") == "EFS" else lustre
        yield from check(context, f"channels.{channel['ChannelName']}", system)


def lustre(context: Context, key: str, system: dict[str, Any]) -> Iterator[Finding]:
    """FSx for Lustre: its VPC, and its name, with which a channel's path begins."""
    what = f"FSx {system['FileSystemId']}"
    answer, problems = ask(context, key, what, LUSTRE, FileSystemIds=[system["FileSystemId"]])
    yield from problems
    for found in answer.get("FileSystems", [])[:1]:
        mount = found.get("LustreConfiguration", {}).get("MountName")
        path = str(system.get("DirectoryPath", ""))
        if mount and path.split("/")[1:2] != [mount]:  # sagemaker-python-sdk#4257
            problem = f'{what} has the mount name {mount}, and directory_path is "{path}"'
            yield error(key, problem, f'begin it with "/{mount}"')
        if vpc := found.get("VpcId"):
            yield from of_vpc(context, key, what, [vpc], subnets(context))


def elastic(context: Context, key: str, system: dict[str, Any]) -> Iterator[Finding]:
    """EFS: a mount target in the job's VPC, and in the zone of each of its subnets."""
    name = system["FileSystemId"]
    _, problems = ask(context, key, f"EFS {name}", ELASTIC, FileSystemId=name)
    yield from problems
    if refused(problems):
        return
    what = f"the mount targets of EFS {name}"
    answer, problems = ask(context, key, what, MOUNT_TARGETS, FileSystemId=name)
    yield from problems
    targets = answer.get("MountTargets")
    if targets == []:
        yield error(key, f"EFS {name} has no mount target", "create one in each of your subnets")
    if not targets:
        return
    places = subnets(context)
    elsewhere = list(of_vpc(context, key, f"EFS {name}", [at["VpcId"] for at in targets], places))
    yield from elsewhere
    zones = {target.get("AvailabilityZoneId") for target in targets}
    for place in [] if elsewhere else places:
        if place.get("AvailabilityZoneId") not in zones:
            problem = f"EFS {name} has no mount target in the zone of {place['SubnetId']}"
            yield warning(key, problem, "create one there, or leave the subnet out")


def subnets(context: Context) -> list[dict[str, Any]]:
    """The job's subnets; none where AWS does not show them, as the check of the VPC reports."""
    names = context.request.get("VpcConfig", {}).get("Subnets", [])
    if not names:
        return []
    answer, _ = ask(context, "network.subnets", "a subnet", SUBNETS, SubnetIds=names)
    return list(answer.get("Subnets", []))


def of_vpc(
    context: Context, key: str, what: str, vpcs: list[str], places: list[dict[str, Any]]
) -> Iterator[Finding]:
    """A file system is in the VPC of the job's subnets, or in one that a route of theirs leads to.

    Args:
        context: of the job.
        key: of job.toml.
        what: the file system is called in a finding.
        vpcs: in which it can be mounted.
        places: the job's subnets.
    """
    mine = {place["VpcId"] for place in places}
    if not mine or mine & set(vpcs):
        return
    routes = network.routes(context, places)
    unsure = any(not ways or network.leads_elsewhere(ways) for ways in routes.values())
    level = warning if unsure else error
    problem = f"{what} is in {', '.join(sorted(set(vpcs)))}, the job in {', '.join(sorted(mine))}"
    yield level(key, problem, "take subnets of its VPC")


def keys(context: Context) -> Iterator[Finding]:
    """KMS keys, by ID, ARN or alias, that are enabled."""
    output, resources = context.request["OutputDataConfig"], context.request["ResourceConfig"]
    members = {
        "request.OutputDataConfig.KmsKeyId": output.get("KmsKeyId"),
        "request.ResourceConfig.VolumeKmsKeyId": resources.get("VolumeKmsKeyId"),
    }
    for key, name in members.items():
        if name:
            yield from ask(context, key, f"KMS key {name}", KEY, KeyId=name)[1]


def secrets(context: Context) -> Iterator[Finding]:
    """Secrets in Secrets Manager and Parameter Store; their values are not read."""
    for key, secret in table.secret_keys(context.job):
        name = secret.name
        if not secret.is_parameter:
            what = f"secret {name}"
            yield from ask(context, key, what, SECRET, secret.region, SecretId=name)[1]
            continue
        wanted = [{"Key": "Name", "Values": [name]}]
        what = f"parameter {name}"
        answer, problems = ask(context, key, what, PARAMETER, ParameterFilters=wanted)
        yield from problems
        if answer.get("Parameters") == []:
            yield absent(key, what)


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
    if name.startswith("mlflow-tracking-server/"):
        named = {"TrackingServerName": name.partition("/")[2]}
        yield from ask(context, "mlflow", arn, SERVER, region, **named)[1]
    else:
        yield from ask(context, "mlflow", arn, APP, region, Arn=arn)[1]


def plan(context: Context) -> Iterator[Finding]:
    """Training plans, which reserve capacity of the job's instance type for training jobs."""
    for member, arn, cluster in resources.plans(context.request["ResourceConfig"]):
        key, name = f"request.{member}", arn.rpartition("/")[2]
        what = f"training plan {name}"
        answer, problems = ask(context, key, what, PLAN, TrainingPlanName=name)
        yield from problems
        uses = answer.get("TargetResources") or ["training-job"]
        if "training-job" not in uses:
            problem = f"{what} is for {' and '.join(uses)}, and a plan serves only what it is for"
            yield error(key, problem, "name a plan for training jobs")
        capacities = answer.get("ReservedCapacitySummaries", [])
        reserved = {capacity["InstanceType"] for capacity in capacities}
        other = [kind for kind in resources.types_in(cluster) if kind not in reserved]
        if reserved and other:
            problem = f"{what} is for {' and '.join(sorted(reserved))}, not for {other[0]}"
            yield error(key, problem, "name a plan for that type, or take the plan's type")
            continue
        wanted = sum(group.count for group in cluster)
        total = answer.get("TotalInstanceCount", wanted)
        free = answer.get("AvailableInstanceCount", wanted)
        if total < wanted:
            problem = f"{what} has {total} instances, and {resources.shown(cluster)} takes {wanted}"
            yield error(key, problem, "take fewer hosts, or name a larger plan")
        elif answer.get("Status") == "Active" and free < wanted:
            problem = f"{free} of the {total} instances of {what} are free"
            yield warning(key, problem, f"the job waits until {wanted} are")
