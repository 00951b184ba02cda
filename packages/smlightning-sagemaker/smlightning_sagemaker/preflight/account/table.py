"""The one table of permissions: who needs which action on which resources.

Preflight asks IAM's simulation for these permissions (permissions.py); the policies and the
CloudFormation file are made from them (template.py).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smlightning import stored_secrets
from smlightning.stored_secrets import Reference
from smlightning_sagemaker.job import images, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements

SAGEMAKER = "sagemaker.amazonaws.com"
EVERY = "*"  # for an action that has no resources
CALLER, ROLE = "caller", "role"  # sends the job; the job runs under it
LOOKER = "looker"  # runs preflight and list, and changes nothing; each caller is one, too
# S3 Express and access points: their ARNs have other forms (userguide/access-points-naming.html).
OTHER_BUCKET = re.compile(r"arn:.*|.*(--x-s3|--xa-s3|-s3alias)")
WHOLE_SECRET = re.compile(r"arn:.+-[A-Za-z0-9]{6}")

Condition = tuple[tuple[str, str], ...]  # (key of IAM's context, value)


@dataclass(frozen=True)
class Facts:
    """The table's input: a job's request, and the account that it is sent to.

    ``account`` and ``partition`` may be placeholders of CloudFormation.
    """

    job: Job
    request: dict[str, Any]
    partition: str
    account: str
    role: str  # ARN of the execution role
    job_name: str  # of the training job; a pattern in a policy
    senders: tuple[str, ...] = ()  # ARNs of those whose permissions preflight checks
    key_arns: Mapping[str, str] = field(default_factory=dict)  # alias in the request → KMS key

    def arn(self, service: str, name: str, *, account: str = "", region: str = "") -> str:
        """The ARN of a resource of this account and region."""
        place = region or self.job.region
        return f"arn:{self.partition}:{service}:{place}:{account or self.account}:{name}"

    @property
    def training_job(self) -> str:
        """The name of the training job; a pattern in a policy."""
        return str(self.request["TrainingJobName"])

    @property
    def output(self) -> str:
        """The S3 address below which SageMaker stores models."""
        return str(self.request["OutputDataConfig"]["S3OutputPath"])

    def of_job(self, output: str, inside: str = "") -> list[str]:
        """Objects of the training job below an S3 address; SageMaker adds the job's name."""
        return self.objects(f"{output.rstrip('/')}/{self.training_job}/{inside}")

    def objects(self, address: str, rest: str = "*") -> list[str]:
        """ARN of the objects at an S3 address; none in S3 Express and behind an access point.

        Args:
            address: the beginning of their keys.
            rest: of the keys; empty: one object.
        """
        path = address.removeprefix("s3://").replace(request.DRY_ACCOUNT, self.account)
        name, _, key = path.partition("/")
        if OTHER_BUCKET.fullmatch(name):
            return []
        return [f"arn:{self.partition}:s3:::{name}/{key}{rest}"]


@dataclass(frozen=True)
class Permission:
    """A line of the table.

    Attributes:
        who: needs it: CALLER, ROLE or LOOKER.
        action: as IAM names it.
        resources: their name in `resources_of`; a job without any does not need the permission.
    """

    who: str
    action: str
    resources: str


@dataclass(frozen=True)
class Need:
    """A permission that one job needs: its action, and the ARNs that it is done on."""

    action: str
    resources: tuple[str, ...]
    condition: Condition  # to which a policy may narrow it


def needs(facts: Facts, who: str) -> list[Need]:
    """The permissions of the table that someone needs for a job."""
    resources, conditions = resources_of(facts), conditions_of(facts)
    required = []
    for line in TABLE:
        arns = tuple(dict.fromkeys(resources[line.resources])) if line.who == who else ()
        if arns:
            required.append(Need(line.action, arns, conditions.get(line.resources, ())))
    return required


def resources_of(facts: Facts) -> dict[str, list[str]]:
    """Name of resources in the table → their ARNs; none where the job does not need them."""
    return {
        "everything": [EVERY],
        **_of_job(facts),
        **_of_storage(facts),
        **_of_network(facts),
        **_of_secrets(facts),
    }


def conditions_of(facts: Facts) -> dict[str, Condition]:
    """Name of resources in the table → the condition under which they are used."""
    passed = (("iam:PassedToService", SAGEMAKER),)
    return {
        "execution role": passed,
        "token of CodeArtifact": (("sts:AWSServiceName", "codeartifact.amazonaws.com"),),
        "key of the output": _by_alias(_output_key(facts)),
        "key of the disks": _by_alias(_disk_key(facts)),
    }


def _any(arns: Collection[str]) -> list[str]:
    """Everything, for an action that has no resources, if the job uses some of these."""
    return [EVERY] if arns else []


def _of_job(facts: Facts) -> dict[str, list[str]]:
    """Jobs, roles, logs, image and servers."""
    request = facts.request
    jobs = [facts.arn("sagemaker", f"training-job/{facts.training_job}")]
    principals = [facts.role, *facts.senders]
    stream = f"{facts.training_job.removesuffix('*')}*"
    uri = str(request["AlgorithmSpecification"].get("TrainingImage", ""))
    debug = request.get("RemoteDebugConfig", {})
    package = request.get("Environment", {}).get(requirements.CODEARTIFACT, "")
    place, _, path = package.partition(":repository/")
    return {
        "job": jobs,
        "job with a warm pool": jobs if facts.job.keep_alive_s else [],
        "tagged jobs": jobs if request.get("Tags") else [],
        "execution role": [facts.role],
        "roles": [arn for arn in principals if ":role" in arn],
        "principals": principals,
        "log group": [facts.arn("logs", "log-group:/aws/sagemaker/TrainingJobs*")],
        "log streams": [
            facts.arn("logs", f"log-group:/aws/sagemaker/TrainingJobs:log-stream:{stream}")
        ],
        "repository": _repository(facts, uri),
        "any repository": _any(_repository(facts, uri)),
        # ECR answers questions about images of your own only.
        "own repository": [] if images.aws_image(uri) else _repository(facts, uri),
        "packages": [package] if package else [],
        "domain of packages": [f"{place}:domain/{path.split('/')[0]}"] if package else [],
        "token of CodeArtifact": _any(package),
        "remote shell": [EVERY] if debug.get("EnableRemoteDebug") else [],
    }


def _of_storage(facts: Facts) -> dict[str, list[str]]:
    """Objects and buckets of each of the job's and the model's places."""
    named = {}
    for name, patterns in _places(facts).items():
        named[f"objects of {name}"] = patterns
        named[f"buckets of {name}"] = [pattern.partition("/")[0] for pattern in patterns]
    return named


def _places(facts: Facts) -> dict[str, list[str]]:
    """ARN of objects in S3. Code, checkpoints and model lie in a folder with the job's name."""
    request = facts.request
    own = facts.of_job(facts.output)
    code = facts.of_job(facts.output, "source/")  # request.archive_uri
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri", "")
    is_kept = checkpoints.startswith("s3://")
    kept = facts.objects(f"{checkpoints.rstrip('/')}/") if is_kept else []
    outputs = [*own, *kept]
    # Folders of profiler, debugger and TensorBoard (SDK v2, Estimator.latest_job_*_path).
    for member in ("ProfilerConfig", "DebugHookConfig", "TensorBoardOutputConfig"):
        if address := request.get(member, {}).get("S3OutputPath"):
            outputs += facts.of_job(address)
    inputs = list(_inputs(facts))
    return {
        "the job": own,
        "the code": code,
        "checkpoints": kept,
        "outputs": outputs,
        "all": [*inputs, *outputs],
    }


def _inputs(facts: Facts) -> Iterator[str]:
    """Objects of the channels, whose keys begin with the address (API_S3DataSource, S3Uri).

    A manifest is one object; which objects it lists is not known here.
    """
    for channel in facts.request.get("InputDataConfig", []):
        given = channel.get("DataSource", {}).get("S3DataSource", {})
        address = str(given.get("S3Uri", ""))
        if address.startswith("s3://"):
            rest = "" if str(given.get("S3DataType", "")).endswith("ManifestFile") else "*"
            yield from facts.objects(address, rest)


def _repository(facts: Facts, uri: str) -> list[str]:
    """The repository of an image in ECR; none of a public registry or one in the VPC."""
    address = images.ECR.match(uri)
    if not address:
        return []
    name, owner, region = address[3], address[1], address[2]
    return [facts.arn("ecr", f"repository/{name}", account=owner, region=region)]


def _of_network(facts: Facts) -> dict[str, list[str]]:
    """A VPC, and file systems in it."""
    vpc = facts.request.get("VpcConfig", {})
    # SageMaker creates network interfaces for the hosts.
    interfaces = [facts.arn("ec2", "network-interface/*")] if vpc else []
    parts = [("subnet", name) for name in vpc.get("Subnets", [])]
    parts += [("security-group", name) for name in vpc.get("SecurityGroupIds", [])]
    # Another account may share subnets and groups.
    shared = [facts.arn("ec2", f"{kind}/{name}", account="*") for kind, name in parts]
    systems: dict[str, list[str]] = {"EFS": [], "FSxLustre": []}
    for channel in facts.request.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource", {})
        kind = system.get("FileSystemType")
        service = "elasticfilesystem" if kind == "EFS" else "fsx"
        name = f"file-system/{system.get('FileSystemId', '')}"
        systems.setdefault(kind, []).append(facts.arn(service, name))
    return {
        "network": _any(vpc),
        "interfaces": interfaces,
        "interfaces in the network": [*interfaces, *shared],
        "EFS": systems["EFS"],
        "FSx": _any(systems["FSxLustre"]),
    }


def _of_secrets(facts: Facts) -> dict[str, list[str]]:
    """Secrets, parameters and KMS keys."""
    found = [secret for _, secret in secret_keys(facts.job)]
    parameters = [
        secret.name
        if secret.name.startswith("arn:")
        else facts.arn("ssm", f"parameter/{secret.name.lstrip('/')}")
        for secret in found
        if secret.is_parameter
    ]
    return {
        "secrets": [_secret(facts, secret) for secret in found if not secret.is_parameter],
        "parameters": parameters,
        "any parameter": _any(parameters),
        "key of the output": _kms_key(facts, _output_key(facts)),
        "key of the disks": _kms_key(facts, _disk_key(facts)),
    }


def _secret(facts: Facts, secret: Reference) -> str:
    """The ARN of a secret of Secrets Manager.

    AWS adds a hyphen and six characters to a name, and an ARN may be given without them
    (secretsmanager/latest/userguide/troubleshoot.html).
    """
    if WHOLE_SECRET.fullmatch(secret.name):
        return secret.name
    is_arn = secret.name.startswith("arn:")
    arn = secret.name if is_arn else facts.arn("secretsmanager", f"secret:{secret.name}")
    return f"{arn}-??????"


def secret_keys(job: Job) -> list[tuple[str, Reference]]:
    """Key of job.toml, and the secret that its value refers to."""
    texts = {"hub_token_secret": job.hub_token_secret} if job.hub_token_secret else {}
    texts |= {f"secrets.{variable}": text for variable, text in job.secrets.items()}
    return [(key, stored_secrets.parse(text)) for key, text in texts.items()]


def _output_key(facts: Facts) -> str:
    return str(facts.request["OutputDataConfig"].get("KmsKeyId", ""))


def _disk_key(facts: Facts) -> str:
    return str(facts.request.get("ResourceConfig", {}).get("VolumeKmsKeyId", ""))


def _kms_key(facts: Facts, key: str) -> list[str]:
    """The ARN of a KMS key; for an unknown alias any key, which `_by_alias` narrows."""
    if not key:
        return []
    if key in facts.key_arns:
        return [facts.key_arns[key]]
    if ":alias/" in key:
        return [f"{key.partition(':alias/')[0]}:key/*"]
    if key.startswith("arn:"):
        return [key]
    return [facts.arn("kms", "key/*" if key.startswith("alias/") else f"key/{key}")]


def _by_alias(key: str) -> Condition:
    """The condition that a key has this alias; none for a key's ID or ARN.

    No ARN in a policy takes an alias (kms/latest/developerguide/alias-authorization.html).
    """
    _, is_alias, name = key.partition("alias/")
    return (("kms:ResourceAliases", f"alias/{name}"),) if is_alias else ()


def _lines(who: str, actions: str, resources: str) -> Iterator[Permission]:
    """A line for each action of one service, which is before the colon."""
    service, _, names = actions.partition(":")
    for name in names.split():
        yield Permission(who, f"{service}:{name}", resources)


# AWS's pages that say so, below docs.aws.amazon.com:
# AmazonS3/latest/userguide/UsingKMSEncryption.html
# IAM/latest/UserGuide/id_roles_use_passrole.html
# codeartifact/latest/ug/auth-and-access-control-iam-identity-based-access-control.html
# sagemaker/latest/dg/model-access-training-data.html
# sagemaker/latest/dg/model-checkpoints.html
# sagemaker/latest/dg/sagemaker-roles.html
# sagemaker/latest/dg/train-remote-debugging.html
# secretsmanager/latest/userguide/auth-and-access_examples.html
# service-authorization/latest/reference/list_amazonec2.html
# service-authorization/latest/reference/list_amazonelasticcontainerregistry.html
# service-authorization/latest/reference/list_amazonsagemaker.html
# service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
# service-authorization/latest/reference/list_awspricelist.html
# service-authorization/latest/reference/list_servicequotas.html
# systems-manager/latest/userguide/sysman-paramstore-access.html
TABLE: tuple[Permission, ...] = (
    # `submit`, `attach` and `stop`; then the job itself.
    *_lines(CALLER, "sagemaker:CreateTrainingJob", "job"),
    *_lines(CALLER, "sagemaker:AddTags", "tagged jobs"),
    *_lines(CALLER, "iam:PassRole", "execution role"),
    *_lines(CALLER, "s3:PutObject", "objects of the code"),
    *_lines(CALLER, "kms:GenerateDataKey Decrypt", "key of the output"),
    *_lines(CALLER, "sagemaker:DescribeTrainingJob StopTrainingJob", "job"),
    *_lines(CALLER, "sagemaker:UpdateTrainingJob", "job with a warm pool"),
    *_lines(CALLER, "logs:DescribeLogStreams", "log group"),
    *_lines(CALLER, "logs:GetLogEvents", "log streams"),
    *_lines(ROLE, "s3:GetObject", "objects of all"),
    *_lines(ROLE, "s3:PutObject", "objects of outputs"),
    *_lines(ROLE, "s3:DeleteObject", "objects of checkpoints"),
    *_lines(ROLE, "s3:ListBucket", "buckets of all"),
    *_lines(ROLE, "logs:CreateLogGroup DescribeLogStreams", "log group"),
    *_lines(ROLE, "logs:CreateLogStream PutLogEvents", "log streams"),
    *_lines(ROLE, "cloudwatch:PutMetricData", "everything"),
    *_lines(ROLE, "ecr:GetAuthorizationToken", "any repository"),
    *_lines(ROLE, "ecr:BatchCheckLayerAvailability BatchGetImage", "repository"),
    *_lines(ROLE, "ecr:GetDownloadUrlForLayer", "repository"),
    *_lines(ROLE, "ec2:CreateNetworkInterface", "interfaces in the network"),
    *_lines(ROLE, "ec2:DeleteNetworkInterface", "interfaces"),
    *_lines(ROLE, "ec2:CreateNetworkInterfacePermission", "interfaces"),
    *_lines(ROLE, "ec2:DeleteNetworkInterfacePermission", "interfaces"),
    *_lines(ROLE, "ec2:DescribeNetworkInterfaces DescribeVpcs DescribeSubnets", "network"),
    *_lines(ROLE, "ec2:DescribeDhcpOptions DescribeSecurityGroups", "network"),
    *_lines(ROLE, "kms:Encrypt Decrypt GenerateDataKey", "key of the output"),
    *_lines(ROLE, "kms:CreateGrant DescribeKey", "key of the disks"),
    *_lines(ROLE, "secretsmanager:GetSecretValue", "secrets"),
    *_lines(ROLE, "ssm:GetParameter", "parameters"),
    *_lines(ROLE, "codeartifact:GetAuthorizationToken", "domain of packages"),
    *_lines(ROLE, "codeartifact:GetRepositoryEndpoint ReadFromRepository", "packages"),
    *_lines(ROLE, "sts:GetServiceBearerToken", "token of CodeArtifact"),
    *_lines(ROLE, "ssmmessages:CreateControlChannel CreateDataChannel", "remote shell"),
    *_lines(ROLE, "ssmmessages:OpenControlChannel OpenDataChannel", "remote shell"),
    # Preflight and `list` look these up. Preflight rejects no job that lacks them.
    *_lines(LOOKER, "iam:GetRole", "roles"),
    *_lines(LOOKER, "iam:SimulatePrincipalPolicy", "principals"),
    *_lines(LOOKER, "sagemaker:ListTrainingJobs", "everything"),
    *_lines(LOOKER, "servicequotas:ListServiceQuotas", "everything"),
    *_lines(LOOKER, "servicequotas:ListAWSDefaultServiceQuotas", "everything"),
    *_lines(LOOKER, "pricing:GetProducts", "everything"),
    *_lines(LOOKER, "s3:ListBucket", "buckets of all"),
    *_lines(LOOKER, "ec2:DescribeSubnets DescribeSecurityGroups", "network"),
    *_lines(LOOKER, "ec2:DescribeRouteTables DescribeVpcEndpoints", "network"),
    *_lines(LOOKER, "ecr:DescribeImages", "own repository"),
    *_lines(LOOKER, "elasticfilesystem:DescribeFileSystems", "EFS"),
    *_lines(LOOKER, "fsx:DescribeFileSystems", "FSx"),
    *_lines(LOOKER, "kms:DescribeKey", "key of the output"),
    *_lines(LOOKER, "kms:DescribeKey", "key of the disks"),
    *_lines(LOOKER, "secretsmanager:DescribeSecret", "secrets"),
    *_lines(LOOKER, "ssm:DescribeParameters", "any parameter"),
)


FILE_SYSTEM_KEYS = {"DirectoryPath": "FileSystemDirectoryPath"}  # the others are their members


def context_of_request(request: dict[str, Any]) -> dict[str, Any]:
    """Keys of IAM's context that SageMaker sets for CreateTrainingJob with a request.

    The keys and their types are those of service-authorization/latest/reference/
    list_amazonsagemaker.html; a member that the request lacks sets no key.
    """
    config, debug = request["ResourceConfig"], request.get("RemoteDebugConfig", {})
    vpc, tags = request.get("VpcConfig", {}), request.get("Tags", [])
    values: dict[str, Any] = {
        "sagemaker:NetworkIsolation": bool(request.get("EnableNetworkIsolation")),
        "sagemaker:VpcSubnets": vpc.get("Subnets"),
        "sagemaker:VpcSecurityGroupIds": vpc.get("SecurityGroupIds"),
        "aws:TagKeys": [tag["Key"] for tag in tags],
        **{f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in tags},
        "sagemaker:InstanceTypes": config.get("InstanceType"),
        "sagemaker:MaxRuntimeInSeconds": request["StoppingCondition"].get("MaxRuntimeInSeconds"),
        "sagemaker:InterContainerTrafficEncryption": bool(
            request.get("EnableInterContainerTrafficEncryption")
        ),
        "sagemaker:OutputKmsKey": request["OutputDataConfig"].get("KmsKeyId"),
        "sagemaker:VolumeKmsKey": config.get("VolumeKmsKeyId"),
        "sagemaker:KeepAlivePeriod": config.get("KeepAlivePeriodInSeconds"),
        "sagemaker:EnableRemoteDebug": debug.get("EnableRemoteDebug"),
    }
    for channel in request.get("InputDataConfig", []):
        for member, value in channel.get("DataSource", {}).get("FileSystemDataSource", {}).items():
            values[f"sagemaker:{FILE_SYSTEM_KEYS.get(member, member)}"] = value
    return {key: value for key, value in values.items() if value not in (None, [], "")}
