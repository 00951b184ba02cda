"""Who has to be allowed what, on which resource, and when: the one table of a job's permissions.

IAM's simulation is asked for it (permissions.py), and policies and the account's file are made of
it (template.py). Pages are AWS's, below docs.aws.amazon.com.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from smlightning import stored_secrets
from smlightning.launch import aws, images, inference_images, resources
from smlightning.launch.job import Job
from smlightning.stored_secrets import Reference

SAGEMAKER = "sagemaker.amazonaws.com"
CODEARTIFACT = "CA_REPOSITORY_ARN"  # of the training toolkit, modules.py
EVERY = "*"  # of an action that has no resources
CALLER, ROLE = "caller", "role"
DEPLOYER, ENDPOINT = "deployer", "endpoint"  # who deploys or registers, and its model's role
# What `deploy` and `register` create, by IAM's names of the resources; the last is an endpoint,
# too, whose answers are files in S3.
KINDS = (
    "model",
    "endpoint-config",
    "endpoint",
    "transform-job",
    "model-package",
    "asynchronous-endpoint",
)


@dataclass(frozen=True)
class Facts:
    """What the table reads: a job's request, and where it is sent.

    ``account`` and ``partition`` may be placeholders of CloudFormation.
    """

    job: Job
    request: dict[str, Any]
    partition: str
    account: str
    role: str  # ARN of the execution role
    folders: dict[str, str]  # key of job.toml → address in S3 of data, output, checkpoints
    output_key: str  # that of them by which output and code go
    job_name: str  # of the training job or the search; a pattern in a policy
    tuning: bool = False
    inference_image: str = ""  # of `deploy --image`; empty: AWS's own for PyTorch
    transform: tuple[str, str] | None = None  # S3 addresses of `deploy --transform`
    package_group: str = "*"  # of `register --group`; a pattern in a policy
    created: frozenset[str] | None = None  # KINDS that are about to be created; None: any of them

    def creates(self, kind: str) -> bool:
        """Whether one of KINDS is, or may be, created."""
        assert kind in KINDS, kind
        return self.created is None or kind in self.created

    def arn(self, service: str, name: str, *, account: str = "", region: str = "") -> str:
        """The ARN of a resource of this account and region."""
        place = region or self.job.region
        return f"arn:{self.partition}:{service}:{place}:{account or self.account}:{name}"

    def s3(self, path: str) -> str:
        return f"arn:{self.partition}:s3:::{path}"

    def objects(self, *keys: str) -> list[str]:
        """ARNs of everything below the folders of these keys."""
        paths = [
            f"{self.folders[key].removeprefix('s3://').rstrip('/')}/"
            for key in keys
            if key in self.folders
        ]
        outermost = [
            path
            for path in paths
            if not any(path.startswith(other) and path != other for other in paths)
        ]
        return [self.s3(f"{path}*") for path in outermost]

    @property
    def channels(self) -> list[str]:
        return [key for key in self.folders if key.startswith("channels.")]

    @property
    def variables(self) -> dict[str, str]:
        return dict(self.request.get("Environment", {}))


Resources = Callable[[Facts], list[str]]


@dataclass(frozen=True)
class Permission:
    """A line of the table.

    Attributes:
        who: the caller, who sends the job, or the role that it runs under; who deploys its model,
            or the role that the model answers under.
        action: as IAM names it.
        resources: on which; none where the job does not need the permission.
        condition: key → value of IAM's context, which a policy may be narrowed to.
        page: that says so.
    """

    who: str
    action: str
    resources: Resources
    page: str
    condition: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Need:
    """A permission of one job: its action, and the ARNs that it is done on."""

    who: str
    action: str
    resources: tuple[str, ...]
    condition: tuple[tuple[str, str], ...]


def needs(facts: Facts, who: str) -> list[Need]:
    """What a job needs the caller, or its role, to be allowed."""
    required = []
    for line in (*TABLE, *DEPLOYMENT):
        resources = tuple(dict.fromkeys(line.resources(facts))) if line.who == who else ()
        if resources:
            required.append(Need(who, line.action, resources, tuple(line.condition.items())))
    return required


# Resources, of which there are none where a job does not need the permission.


def everything(facts: Facts) -> list[str]:
    return [EVERY]


def single_job(facts: Facts) -> list[str]:
    return [] if facts.tuning else [facts.arn("sagemaker", f"training-job/{facts.job_name}")]


def search(facts: Facts) -> list[str]:
    name = f"hyper-parameter-tuning-job/{facts.job_name}"
    return [facts.arn("sagemaker", name)] if facts.tuning else []


def tagged(facts: Facts) -> list[str]:
    return [*single_job(facts), *search(facts)] if facts.request.get("Tags") else []


def execution_role(facts: Facts) -> list[str]:
    return [facts.role]


def code(facts: Facts) -> list[str]:
    return facts.objects(facts.output_key)


def read(facts: Facts) -> list[str]:
    return facts.objects(*facts.channels, facts.output_key, "checkpoint_s3")


def written(facts: Facts) -> list[str]:
    return facts.objects(facts.output_key, "checkpoint_s3")


def checkpoints(facts: Facts) -> list[str]:
    return facts.objects("checkpoint_s3")


def buckets(facts: Facts) -> list[str]:
    names = (aws.s3_location(uri)[0] for uri in facts.folders.values())
    return [facts.s3(name) for name in dict.fromkeys(names)]


def logs(facts: Facts) -> list[str]:
    return [facts.arn("logs", "log-group:/aws/sagemaker/TrainingJobs*")]


def repository(facts: Facts) -> list[str]:
    """The repository of a private image in ECR; a registry of the VPC's and a public one: none."""
    return repository_of(
        facts, str(facts.request["AlgorithmSpecification"].get("TrainingImage", ""))
    )


def repository_of(facts: Facts, uri: str) -> list[str]:
    address = images.ECR.match(uri)
    if not address:
        return []
    return [
        facts.arn("ecr", f"repository/{address[3]}", account=address[1], region=address[2]),
    ]


def registry(facts: Facts) -> list[str]:
    return [EVERY] if repository(facts) else []


def network(facts: Facts) -> list[str]:
    return [EVERY] if facts.request.get("VpcConfig") else []


def key_arn(facts: Facts, key: str) -> list[str]:
    """The ARN of a KMS key; of an alias, whose key is not known here, every key of the account."""
    if not key:
        return []
    if key.startswith("arn:") and ":alias/" not in key:
        return [key]
    return [facts.arn("kms", "key/*" if "alias/" in key else f"key/{key}")]


def output_key(facts: Facts) -> list[str]:
    return key_arn(facts, str(facts.request["OutputDataConfig"].get("KmsKeyId", "")))


def disk_key(facts: Facts) -> list[str]:
    return key_arn(facts, str(facts.request["ResourceConfig"].get("VolumeKmsKeyId", "")))


def secrets(facts: Facts) -> list[str]:
    """Secrets of Secrets Manager that the job's processes read; AWS adds six letters to names."""
    names = [secret.name for _, secret in secret_keys(facts.job) if not secret.is_parameter]
    return [
        name if name.startswith("arn:") else facts.arn("secretsmanager", f"secret:{name}-*")
        for name in names
    ]


def parameters(facts: Facts) -> list[str]:
    """Secrets of Parameter Store."""
    names = [secret.name for _, secret in secret_keys(facts.job) if secret.is_parameter]
    return [facts.arn("ssm", f"parameter/{name.lstrip('/')}") for name in names]


def secret_keys(job: Job) -> list[tuple[str, Reference]]:
    """Key of job.toml, and the secret that its value refers to."""
    texts = {"hub_token_secret": job.hub_token_secret} if job.hub_token_secret else {}
    texts |= {f"secrets.{variable}": text for variable, text in job.secrets.items()}
    return [(key, stored_secrets.parse(text)) for key, text in texts.items()]


def tracking_server(facts: Facts) -> list[str]:
    return [facts.job.mlflow] if ":mlflow-tracking-server/" in facts.job.mlflow else []


def tracking_app(facts: Facts) -> list[str]:
    return [facts.job.mlflow] if ":mlflow-app/" in facts.job.mlflow else []


def packages(facts: Facts) -> list[str]:
    """The repository of CodeArtifact that pip asks."""
    repository_arn = facts.variables.get(CODEARTIFACT, "")
    return [repository_arn] if repository_arn else []


def packages_domain(facts: Facts) -> list[str]:
    """The domain of that repository."""
    domains = []
    for arn in packages(facts):
        place, _, path = arn.partition(":repository/")
        domains.append(f"{place}:domain/{path.split('/')[0]}")
    return domains


def packages_token(facts: Facts) -> list[str]:
    return [EVERY] if packages(facts) else []


def remote_shell(facts: Facts) -> list[str]:
    return [EVERY] if facts.request.get("RemoteDebugConfig", {}).get("EnableRemoteDebug") else []


def deployed(*kinds: str) -> Resources:
    """Resources that `deploy` makes, which have their job's name, in small letters."""

    def resources(facts: Facts) -> list[str]:
        name = facts.job_name.lower().removesuffix("*")
        return [facts.arn("sagemaker", f"{kind}/{name}*") for kind in kinds if facts.creates(kind)]

    return resources


def looked_for(kind: str) -> Resources:
    """What `undeploy` asks for by the deployment's name, whether it was created or not."""

    def resources(facts: Facts) -> list[str]:
        name = facts.job_name.lower().removesuffix("*")
        return [facts.arn("sagemaker", f"{kind}/{name}*")] if facts.creates("model") else []

    return resources


def hosts(facts: Facts) -> list[str]:
    """Instances, of which there is a quota."""
    kinds = ("endpoint", "transform-job")
    return [EVERY] if any(facts.creates(kind) for kind in kinds) else []


def synchronous_endpoint(facts: Facts) -> list[str]:
    is_asynchronous = facts.created is not None and "asynchronous-endpoint" in facts.created
    return [] if is_asynchronous else ENDPOINTS(facts)


def asynchronous_endpoint(facts: Facts) -> list[str]:
    return ENDPOINTS(facts) if facts.creates("asynchronous-endpoint") else []


def role_of_model(facts: Facts) -> list[str]:
    """The execution role, which a version in the registry does not name."""
    return execution_role(facts) if facts.creates("model") else []


def tagged_kinds(facts: Facts) -> list[str]:
    """What is created with the tags of its job, where it has any."""
    if facts.created is not None and not facts.request.get("Tags"):
        return []
    return deployed("model", "endpoint", "endpoint-config", "transform-job")(facts)


def package_group(facts: Facts) -> list[str]:
    """The group of the registry that `register --group` names, by name or ARN."""
    if not facts.creates("model-package"):
        return []
    group = facts.package_group
    by_name = facts.arn("sagemaker", f"model-package-group/{group}")
    return [group if group.startswith("arn:") else by_name]


def new_package_group(facts: Facts) -> list[str]:
    """The group, if it may have to be created: one that is named by ARN exists."""
    return [] if facts.package_group.startswith("arn:") else package_group(facts)


def package_version(facts: Facts) -> list[str]:
    """The group, and a version in it."""
    groups = package_group(facts)
    versions = [group.replace(":model-package-group/", ":model-package/") for group in groups]
    return groups + [name if name.endswith("*") else f"{name}/*" for name in versions]


def inference_repositories(facts: Facts) -> list[str]:
    """Repositories of the image that the model answers in: the named one, else AWS's own."""
    if facts.inference_image:
        return repository_of(facts, facts.inference_image)
    place = facts.job.region
    account = images.REGISTRIES.get(place, "*")
    return [
        facts.arn("ecr", f"repository/{server.cpu.split(':')[0]}", account=account, region=place)
        for server in (inference_images.RAY, inference_images.TOOLKIT)
    ]


def read_by_model(facts: Facts) -> list[str]:
    """What lies below the job's output, and objects that a batch transform's address begins."""
    prefixes = [facts.transform[0].removeprefix("s3://")] if facts.transform else []
    return [*code(facts), *(facts.s3(f"{prefix}*") for prefix in prefixes)]


def written_by_model(facts: Facts) -> list[str]:
    """The same for answers, which are written into a folder."""
    folders = [facts.transform[1].removeprefix("s3://").rstrip("/")] if facts.transform else []
    beside = code(facts) if facts.creates("asynchronous-endpoint") else []
    return [*beside, *(facts.s3(f"{folder}/*") for folder in folders)]


def deployment_buckets(facts: Facts) -> list[str]:
    names = (aws.s3_location(uri)[0] for uri in facts.transform or ())
    return [*buckets(facts), *(facts.s3(name) for name in names)]


def endpoint_logs(facts: Facts) -> list[str]:
    groups = {"Endpoints": "endpoint", "TransformJobs": "transform-job"}
    return [
        facts.arn("logs", f"log-group:/aws/sagemaker/{group}*")
        for group, kind in groups.items()
        if facts.creates(kind)
    ]


ROLES = "sagemaker/latest/dg/sagemaker-roles.html"
IAM = "service-authorization/latest/reference/list_amazonsagemaker.html"
S3 = "AmazonS3/latest/userguide/UsingKMSEncryption.html"
PASSING = "IAM/latest/UserGuide/id_roles_use_passrole.html"
RESUME = "sagemaker/latest/dg/model-checkpoints.html"
SSM = "systems-manager/latest/userguide/sysman-paramstore-access.html"
SECRETS = "secretsmanager/latest/userguide/auth-and-access_examples.html"
MLFLOW = "sagemaker/latest/dg/mlflow-create-tracking-server-iam.html"
CODE = "codeartifact/latest/ug/auth-and-access-control-iam-identity-based-access-control.html"
SHELL = "sagemaker/latest/dg/train-remote-debugging.html"
ASYNC = "sagemaker/latest/dg/async-inference-create-endpoint-prerequisites.html"
PRICES = "service-authorization/latest/reference/list_awspricelist.html"
IDENTITIES = "service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html"
QUOTAS = "service-authorization/latest/reference/list_servicequotas.html"
PASSED = {"iam:PassedToService": SAGEMAKER}
BEARER = {"sts:AWSServiceName": "codeartifact.amazonaws.com"}


def _lines(who: str, actions: str, resources: Resources, page: str) -> Iterator[Permission]:
    """A line for each action of one service, which is before the colon."""
    service, _, names = actions.partition(":")
    for name in names.split():
        yield Permission(who, f"{service}:{name}", resources, page)


TABLE: tuple[Permission, ...] = (
    *_lines(CALLER, "sagemaker:CreateTrainingJob", single_job, IAM),
    *_lines(CALLER, "sagemaker:CreateHyperParameterTuningJob", search, IAM),
    *_lines(CALLER, "sagemaker:AddTags", tagged, IAM),
    Permission(CALLER, "iam:PassRole", execution_role, PASSING, PASSED),
    *_lines(CALLER, "s3:PutObject", code, S3),
    *_lines(CALLER, "kms:GenerateDataKey Decrypt", output_key, S3),
    *_lines(CALLER, "sagemaker:DescribeTrainingJob StopTrainingJob", single_job, IAM),
    *_lines(CALLER, "logs:DescribeLogStreams GetLogEvents", logs, ROLES),
    *_lines(ROLE, "s3:GetObject", read, ROLES),
    *_lines(ROLE, "s3:PutObject", written, ROLES),
    *_lines(ROLE, "s3:DeleteObject", checkpoints, RESUME),
    *_lines(ROLE, "s3:ListBucket", buckets, ROLES),
    *_lines(ROLE, "logs:CreateLogGroup CreateLogStream DescribeLogStreams", logs, ROLES),
    *_lines(ROLE, "logs:PutLogEvents", logs, ROLES),
    *_lines(ROLE, "cloudwatch:PutMetricData", everything, ROLES),
    *_lines(ROLE, "ecr:GetAuthorizationToken", registry, ROLES),
    *_lines(ROLE, "ecr:BatchCheckLayerAvailability BatchGetImage", repository, ROLES),
    *_lines(ROLE, "ecr:GetDownloadUrlForLayer", repository, ROLES),
    *_lines(ROLE, "ec2:CreateNetworkInterface DeleteNetworkInterface", network, ROLES),
    *_lines(ROLE, "ec2:CreateNetworkInterfacePermission", network, ROLES),
    *_lines(ROLE, "ec2:DeleteNetworkInterfacePermission", network, ROLES),
    *_lines(ROLE, "ec2:DescribeNetworkInterfaces DescribeVpcs DescribeSubnets", network, ROLES),
    *_lines(ROLE, "ec2:DescribeDhcpOptions DescribeSecurityGroups", network, ROLES),
    *_lines(ROLE, "kms:Encrypt Decrypt GenerateDataKey", output_key, ROLES),
    *_lines(ROLE, "kms:CreateGrant DescribeKey", disk_key, ROLES),
    *_lines(ROLE, "secretsmanager:GetSecretValue", secrets, SECRETS),
    *_lines(ROLE, "ssm:GetParameter", parameters, SSM),
    *_lines(
        ROLE,
        "sagemaker-mlflow:CreateExperiment GetExperimentByName CreateRun GetRun UpdateRun LogBatch",
        tracking_server,
        MLFLOW,
    ),
    *_lines(ROLE, "sagemaker-mlflow:LogMetric LogParam SetTag", tracking_server, MLFLOW),
    *_lines(ROLE, "sagemaker:CallMlflowAppApi", tracking_app, MLFLOW),
    *_lines(ROLE, "codeartifact:GetAuthorizationToken", packages_domain, CODE),
    *_lines(ROLE, "codeartifact:GetRepositoryEndpoint ReadFromRepository", packages, CODE),
    Permission(ROLE, "sts:GetServiceBearerToken", packages_token, CODE, BEARER),
    *_lines(ROLE, "ssmmessages:CreateControlChannel CreateDataChannel", remote_shell, SHELL),
    *_lines(ROLE, "ssmmessages:OpenControlChannel OpenDataChannel", remote_shell, SHELL),
)


MODELS, TRANSFORMS = deployed("model"), deployed("transform-job")
CONFIGS, ENDPOINTS = deployed("endpoint-config"), deployed("endpoint")
CONFIGURED_ENDPOINTS = deployed("endpoint", "endpoint-config")
# What `deploy`, `undeploy` and `register` need: no job is refused for the lack of it.
DEPLOYMENT: tuple[Permission, ...] = (
    *_lines(DEPLOYER, "sagemaker:DescribeTrainingJob ListTags", single_job, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateModel DeleteModel", MODELS, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateEndpointConfig DeleteEndpointConfig", CONFIGS, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateEndpoint", CONFIGURED_ENDPOINTS, IAM),
    *_lines(DEPLOYER, "sagemaker:DeleteEndpoint", ENDPOINTS, IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeModel", looked_for("model"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeEndpointConfig", looked_for("endpoint-config"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeEndpoint", looked_for("endpoint"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeTransformJob", looked_for("transform-job"), IAM),
    *_lines(DEPLOYER, "sagemaker:InvokeEndpoint", synchronous_endpoint, IAM),
    *_lines(DEPLOYER, "sagemaker:InvokeEndpointAsync", asynchronous_endpoint, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateTransformJob StopTransformJob", TRANSFORMS, IAM),
    *_lines(DEPLOYER, "sagemaker:AddTags", tagged_kinds, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateModelPackageGroup", new_package_group, IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeModelPackageGroup", package_group, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateModelPackage", package_version, IAM),
    Permission(DEPLOYER, "iam:PassRole", role_of_model, PASSING, PASSED),
    *_lines(DEPLOYER, "s3:GetObject PutObject DeleteObject", code, S3),
    *_lines(DEPLOYER, "s3:ListBucket", deployment_buckets, S3),
    *_lines(DEPLOYER, "pricing:GetProducts", everything, PRICES),
    *_lines(DEPLOYER, "iam:GetRole SimulatePrincipalPolicy", everything, IDENTITIES),
    *_lines(DEPLOYER, "servicequotas:ListServiceQuotas", hosts, QUOTAS),
    *_lines(DEPLOYER, "servicequotas:ListAWSDefaultServiceQuotas", hosts, QUOTAS),
    *_lines(DEPLOYER, "kms:GenerateDataKey Decrypt", output_key, S3),
    *_lines(ENDPOINT, "s3:GetObject", read_by_model, ROLES),
    *_lines(ENDPOINT, "s3:PutObject", written_by_model, ROLES),
    *_lines(ENDPOINT, "s3:AbortMultipartUpload", written_by_model, ASYNC),
    *_lines(ENDPOINT, "s3:ListBucket", deployment_buckets, ROLES),
    *_lines(ENDPOINT, "logs:CreateLogGroup CreateLogStream PutLogEvents", endpoint_logs, ROLES),
    *_lines(ENDPOINT, "logs:DescribeLogStreams", endpoint_logs, ROLES),
    *_lines(ENDPOINT, "cloudwatch:PutMetricData", everything, ROLES),
    *_lines(ENDPOINT, "ecr:GetAuthorizationToken", everything, ROLES),
    *_lines(ENDPOINT, "ecr:BatchCheckLayerAvailability", inference_repositories, ROLES),
    *_lines(ENDPOINT, "ecr:BatchGetImage GetDownloadUrlForLayer", inference_repositories, ROLES),
    *_lines(ENDPOINT, "ec2:CreateNetworkInterface DeleteNetworkInterface", network, ROLES),
    *_lines(ENDPOINT, "ec2:CreateNetworkInterfacePermission", network, ROLES),
    *_lines(ENDPOINT, "ec2:DeleteNetworkInterfacePermission", network, ROLES),
    *_lines(ENDPOINT, "ec2:DescribeNetworkInterfaces DescribeVpcs DescribeSubnets", network, ROLES),
    *_lines(ENDPOINT, "ec2:DescribeDhcpOptions DescribeSecurityGroups", network, ROLES),
    *_lines(ENDPOINT, "kms:Encrypt Decrypt GenerateDataKey", output_key, ROLES),
)


def context_of_request(request: dict[str, Any]) -> dict[str, Any]:
    """Key of IAM's context → value, which SageMaker gives for CreateTrainingJob with a request.

    The keys and their types are those of service-authorization/latest/reference/
    list_amazonsagemaker.html; a member that the request has not gives no key.
    """
    config, network_of = request["ResourceConfig"], request.get("VpcConfig", {})
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    values: dict[str, Any] = {
        "sagemaker:InstanceTypes": resources.types_of(config),
        "sagemaker:MaxRuntimeInSeconds": request["StoppingCondition"].get("MaxRuntimeInSeconds"),
        "sagemaker:NetworkIsolation": bool(request.get("EnableNetworkIsolation")),
        "sagemaker:InterContainerTrafficEncryption": bool(
            request.get("EnableInterContainerTrafficEncryption")
        ),
        "sagemaker:VpcSubnets": network_of.get("Subnets"),
        "sagemaker:VpcSecurityGroupIds": network_of.get("SecurityGroupIds"),
        "sagemaker:OutputKmsKey": request["OutputDataConfig"].get("KmsKeyId"),
        "sagemaker:VolumeKmsKey": config.get("VolumeKmsKeyId"),
        "sagemaker:KeepAlivePeriod": config.get("KeepAlivePeriodInSeconds"),
        "sagemaker:EnableRemoteDebug": request.get("RemoteDebugConfig", {}).get(
            "EnableRemoteDebug"
        ),
        "aws:TagKeys": list(tags),
        **{f"aws:RequestTag/{key}": value for key, value in tags.items()},
    }
    for channel in request.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource", {})
        values.update(
            {
                "sagemaker:FileSystemId": system.get("FileSystemId"),
                "sagemaker:FileSystemType": system.get("FileSystemType"),
                "sagemaker:FileSystemAccessMode": system.get("FileSystemAccessMode"),
                "sagemaker:FileSystemDirectoryPath": system.get("DirectoryPath"),
            }
            if system
            else {}
        )
    return {key: value for key, value in values.items() if value not in (None, [], "")}


def context_of_deployment(requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same for what `deploy` or `register` creates: kind → request, of the same page."""
    model = requests.get("Model", {})
    network_of = model.get("VpcConfig", {})
    variants = requests.get("EndpointConfig", {}).get("ProductionVariants", [])
    transform = requests.get("TransformJob", {})
    hosts = [*variants, *filter(None, [transform.get("TransformResources")])]
    serverless = [host["ServerlessConfig"] for host in hosts if "ServerlessConfig" in host]
    request = next(iter(requests.values()))
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    values: dict[str, Any] = {
        "sagemaker:NetworkIsolation": bool(model.get("EnableNetworkIsolation")),
        "sagemaker:VpcSubnets": network_of.get("Subnets"),
        "sagemaker:VpcSecurityGroupIds": network_of.get("SecurityGroupIds"),
        "sagemaker:InstanceTypes": [h["InstanceType"] for h in hosts if "InstanceType" in h],
        "sagemaker:OutputKmsKey": transform.get("TransformOutput", {}).get("KmsKeyId"),
        "aws:TagKeys": list(tags),
        **{f"aws:RequestTag/{key}": value for key, value in tags.items()},
    }
    for config in serverless:
        values["sagemaker:ServerlessMemorySize"] = config["MemorySizeInMB"]
        values["sagemaker:ServerlessMaxConcurrency"] = config["MaxConcurrency"]
    return {key: value for key, value in values.items() if value not in (None, [], "")}
