"""Checks that the resources of a request exist, and that the job can use them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlightning_sagemaker.findings import Finding, error, has_errors, skipped, warning
from smlightning_sagemaker.job import aws, images
from smlightning_sagemaker.preflight.account import table
from smlightning_sagemaker.preflight.account.context import Context

# Beginnings and ends of AWS's error codes for what does not exist, from seven services.
ABSENT = ("NotFound", "DoesNotExist", "Validation", "Invalid")


@dataclass(frozen=True)
class Kind:
    """A kind of resource: the call that describes it, and the states that a job cannot use.

    Attributes:
        service: of boto3.
        operation: its method.
        state: where the answer has the resource's state, in JMESPath; empty: nowhere.
        unusable: states in which a job cannot use it, and that do not pass by themselves.
        cure: for those.
    """

    service: str
    operation: str
    state: str = ""
    unusable: tuple[str, ...] = ()
    cure: str = "use another"


DELETED = "scheduled for deletion"  # AWS has no state of a secret, but the date of its deletion
IMAGE = Kind("ecr", "describe_images")
PARAMETER = Kind("ssm", "describe_parameters", "Parameters == `[]` && 'missing'", ("missing",))
# The states are botocore's enumerations (tests/tools/test_account_resources.py).
LUSTRE = Kind(
    "fsx",
    "describe_file_systems",
    "FileSystems[0].Lifecycle",
    ("DELETING", "FAILED", "MISCONFIGURED_UNAVAILABLE"),
)
ELASTIC = Kind(
    "efs",
    "describe_file_systems",
    "FileSystems[0].LifeCycleState",
    ("deleting", "deleted", "error"),
)
KEY = Kind(
    "kms",
    "describe_key",
    "KeyMetadata.KeyState",
    ("Disabled", "PendingDeletion", "PendingImport", "PendingReplicaDeletion", "Unavailable"),
    "enable the key, or use another one",
)
SECRET = Kind(
    "secretsmanager",
    "describe_secret",
    f"DeletedDate && '{DELETED}'",
    (DELETED,),
    "keep it (aws secretsmanager restore-secret), or use another",
)


def named(context: Context) -> Iterator[Finding]:
    """Findings about image, file systems, keys, and secrets."""
    yield from image(context)
    yield from file_systems(context)
    output, config = context.request["OutputDataConfig"], context.request["ResourceConfig"]
    keys = {
        "request.OutputDataConfig.KmsKeyId": output.get("KmsKeyId"),
        "request.ResourceConfig.VolumeKmsKeyId": config.get("VolumeKmsKeyId"),
    }
    for key, name in keys.items():
        if name:
            yield from ask(context, key, f"KMS key {name}", KEY, KeyId=name)[1]
    yield from secrets(context)


def ask(
    context: Context, key: str, what: str, kind: Kind, region: str = "", **parameters: Any
) -> tuple[dict[str, Any], list[Finding]]:
    """AWS's answer, and a finding if the resource is absent, unusable, or not shown.

    Args:
        context: of the job.
        key: of job.toml.
        what: the resource, as a finding calls it.
        kind: of resource.
        region: where it is; empty: the job's.
        parameters: of the operation.
    """
    import jmespath
    from botocore.exceptions import ClientError

    try:
        client = context.client(kind.service, region)
        answer: dict[str, Any] = getattr(client, kind.operation)(**parameters)
    except ClientError as failure:
        if aws.denied(failure):
            problem = f"these credentials may not look up {what}"
            return {}, [skipped(key, problem, "check that it exists")]
        if any(word in aws.code(failure) for word in ABSENT):
            return {}, [error(key, f"{what} does not exist", "correct it, or create it")]
        raise
    state = jmespath.search(kind.state, answer) if kind.state else None
    if state in kind.unusable:
        return answer, [error(key, f"{what} is {state}", kind.cure)]
    return answer, []


def image(context: Context) -> Iterator[Finding]:
    """An image in an ECR of your own; AWS's registries do not answer this question."""
    uri = str(context.request["AlgorithmSpecification"].get("TrainingImage", ""))
    address = images.ECR.match(uri)
    if not address or images.aws_image(uri) or address[2] != context.job.region:
        return
    digest = uri.partition("@")[2]
    reference = {"imageDigest": digest} if digest else {"imageTag": address[4] or "latest"}
    what = f"{uri.partition('/')[2]} in ECR of account {address[1]}"
    repository = {"registryId": address[1], "repositoryName": address[3]}
    problems = ask(context, "image", what, IMAGE, imageIds=[reference], **repository)[1]
    if images.profile(context.job) and has_errors(problems):
        # A pull-through cache fetches AWS's image at its first pull.
        yield warning("image", problems[0].problem, "copy the image there, unless it is a cache")
    else:
        yield from problems


def file_systems(context: Context) -> Iterator[Finding]:
    """File systems of the channels, and the mount name with which a path in FSx begins."""
    for channel in context.request.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource")
        if not system:
            continue
        key, name = f"channels.{channel['ChannelName']}", system["FileSystemId"]
        if system.get("FileSystemType") == "EFS":
            yield from ask(context, key, f"EFS {name}", ELASTIC, FileSystemId=name)[1]
            continue
        answer, problems = ask(context, key, f"FSx {name}", LUSTRE, FileSystemIds=[name])
        yield from problems
        for found in answer.get("FileSystems", [])[:1]:
            mount = found.get("LustreConfiguration", {}).get("MountName")
            path = str(system.get("DirectoryPath", ""))
            if mount and path.split("/")[1:2] != [mount]:  # sagemaker-python-sdk#4257
                problem = f'directory_path is "{path}", and the mount name of FSx {name} is {mount}'
                yield error(key, problem, f'begin directory_path with "/{mount}"')


def secrets(context: Context) -> Iterator[Finding]:
    """Secrets in Secrets Manager and Parameter Store; their values are not read."""
    for key, secret in table.secret_keys(context.job):
        name = secret.name
        if secret.is_parameter:
            wanted = [{"Key": "Name", "Values": [name]}]
            what = f"parameter {name}"
            yield from ask(context, key, what, PARAMETER, ParameterFilters=wanted)[1]
        else:
            what = f"secret {name}"
            yield from ask(context, key, what, SECRET, secret.region, SecretId=name)[1]
