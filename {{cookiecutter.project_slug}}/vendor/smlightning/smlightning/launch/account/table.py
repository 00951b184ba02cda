"""Who has to be allowed what, on which resource, and when: the one table of a job's permissions.

IAM's simulation is asked for it (permissions.py), and policies and the account's file are made of
it (template.py). Pages are AWS's, below docs.aws.amazon.com.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smlightning import stored_secrets
from smlightning.launch import images, inference_images, request, requirements, resources
from smlightning.launch.job import Job
from smlightning.stored_secrets import Reference

SAGEMAKER = "sagemaker.amazonaws.com"
EVERY = "*"  # of an action that has no resources
CALLER, ROLE = "caller", "role"
LOOKER = "looker"  # who runs preflight and list, and changes nothing; a caller is one, too
DEPLOYER, ENDPOINT = "deployer", "endpoint"  # who deploys, and its model's role
# What `deploy` creates, by IAM's names of the resources.
KINDS = ("model", "endpoint-config", "endpoint")


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
    job_name: str  # of the training job or the search; a pattern in a policy
    tuning: bool = False
    senders: tuple[str, ...] = ()  # ARNs of those whose permissions preflight asks for
    inference_image: str = ""  # of `deploy --image`; empty: AWS's own for PyTorch
    created: frozenset[str] | None = None  # KINDS that are about to be created; None: any of them
    data_keys: tuple[str, ...] = ()  # ARNs of KMS keys that data has; only AWS knows them
    key_arns: Mapping[str, str] = field(default_factory=dict)  # alias in the request → KMS key

    def creates(self, kind: str) -> bool:
        """Whether one of KINDS is, or may be, created."""
        assert kind in KINDS, kind
        return self.created is None or kind in self.created

    def arn(self, service: str, name: str, *, account: str = "", region: str = "") -> str:
        """The ARN of a resource of this account and region."""
        place = region or self.job.region
        return f"arn:{self.partition}:{service}:{place}:{account or self.account}:{name}"

    @property
    def training_job(self) -> str:
        """The name of the training job; of a search, the pattern of its training jobs' names."""
        if self.tuning:
            return f"{self.job_name.removesuffix('*')}*"
        return str(self.request["TrainingJobName"])

    def of_job(self, output: str, inside: str = "") -> "Location":
        """The training job's folder below an S3 address, to which SageMaker adds the job's name."""
        name = self.training_job
        folder = f"{output.rstrip('/')}/{name}" + ("" if self.tuning else "/")
        return self.location(f"{folder}{inside}")

    def location(self, address: str, rest: str = "*") -> "Location":
        """How IAM names an S3 address.

        Args:
            address: of a bucket, a directory bucket, or an access point's alias or ARN.
            rest: of the keys that begin with the address; empty: one object.
        """
        path = address.removeprefix("s3://").replace(request.DRY_ACCOUNT, self.account)
        if access_point := ACCESS_POINT.match(path):
            return Location(
                f"{access_point[1]}/{access_point[2]}", f"/object/{access_point[3]}{rest}"
            )
        name, _, key = path.partition("/")
        if kind := DIRECTORY_KINDS.get(name.rpartition("--")[2]):
            return Location(self.arn("s3express", f"{kind}/{name}"))
        if alias := ALIAS.fullmatch(name):
            # A name of more characters is cut.
            cut = "*" if len(alias[1]) == LONGEST_IN_ALIAS else ""
            return Location(self.arn("s3", f"accesspoint/{alias[1]}{cut}"), f"/object/{key}{rest}")
        return Location(f"arn:{self.partition}:s3:::{name}", f"/{key}{rest}")

    @property
    def variables(self) -> dict[str, str]:
        return dict(self.request.get("Environment", {}))


# userguide/access-points-naming.html: an ARN with a slash, or as boto3 takes it with a colon; an
# alias is the name, 34 characters and -s3alias, 63 at most.
ACCESS_POINT = re.compile(r"(arn:[^/]+:accesspoint)[/:]([^/]+)/?(?:object/)?(.*)")
ALIAS = re.compile(r"(.+)-[a-z0-9]{34}-s3alias")
LONGEST_IN_ALIAS = 63 - len("-s3alias") - 34 - 1
# End of the name of what S3 Express has, and IAM's name of its kind.
DIRECTORY_KINDS = {"x-s3": "bucket", "xa-s3": "accesspoint"}


@dataclass(frozen=True)
class Location:
    """ARN of a bucket or access point, and what follows it in the ARNs of some of its objects.

    A directory bucket's objects have no ARN: a session reads or writes all of them
    (userguide/s3-express-security-iam.html).
    """

    bucket: str
    keys: str = ""


Resources = Callable[[Facts], list[str]]
Places = Callable[[Facts], list[Location]]
Condition = tuple[tuple[str, str], ...]  # (key of IAM's context, value)
Conditions = Callable[[Facts], Condition]


@dataclass(frozen=True)
class Permission:
    """A line of the table.

    Attributes:
        who: the caller, who sends the job, or the role that it runs under; who deploys its model,
            or the role that the model answers under.
        action: as IAM names it.
        resources: on which; none where the job does not need the permission.
        page: that says so.
        condition: which a policy may be narrowed to.
    """

    who: str
    action: str
    resources: Resources
    page: str
    condition: Conditions


@dataclass(frozen=True)
class Need:
    """A permission of one job: its action, and the ARNs that it is done on."""

    who: str
    action: str
    resources: tuple[str, ...]
    condition: Condition


def needs(facts: Facts, who: str) -> list[Need]:
    """What a job needs the caller, or its role, to be allowed."""
    required = []
    for line in (*TABLE, *LOOKING, *DEPLOYMENT):
        resources = tuple(dict.fromkeys(line.resources(facts))) if line.who == who else ()
        if resources:
            required.append(Need(who, line.action, resources, line.condition(facts)))
    return required


# Resources, of which there are none where a job does not need the permission.


def everything(facts: Facts) -> list[str]:
    return [EVERY]


def single_job(facts: Facts) -> list[str]:
    if facts.tuning:
        return []
    return [facts.arn("sagemaker", f"training-job/{facts.training_job}")]


def keeping_job(facts: Facts) -> list[str]:
    """The job, if it keeps a warm pool, which `stop` ends."""
    return single_job(facts) if facts.job.keep_alive_s else []


def search(facts: Facts) -> list[str]:
    name = f"hyper-parameter-tuning-job/{facts.job_name}"
    return [facts.arn("sagemaker", name)] if facts.tuning else []


def tagged(facts: Facts) -> list[str]:
    return [*single_job(facts), *search(facts)] if facts.request.get("Tags") else []


def execution_role(facts: Facts) -> list[str]:
    return [facts.role]


def roles(facts: Facts) -> list[str]:
    """The execution role, and the roles that send."""
    return [arn for arn in principals(facts) if ":role" in arn]


def principals(facts: Facts) -> list[str]:
    """The execution role, and who sends."""
    return [facts.role, *facts.senders]


# Places in S3. The job's own folder is named after it: its code, checkpoints, model and output.


def own(facts: Facts) -> list[Location]:
    """The job's own folder, where code and model are."""
    return [facts.of_job(facts.request["OutputDataConfig"]["S3OutputPath"])]


def source(facts: Facts) -> list[Location]:
    """The folder of the job's code (request.archive_uri)."""
    return [facts.of_job(facts.request["OutputDataConfig"]["S3OutputPath"], "source/")]


def checkpointed(facts: Facts) -> list[Location]:
    """The folder of checkpoints, in the job's own or at an owner's address."""
    address = facts.request.get("CheckpointConfig", {}).get("S3Uri", "")
    return [facts.location(f"{address.rstrip('/')}/")] if address.startswith("s3://") else []


def monitored(facts: Facts) -> list[Location]:
    """Folders of profiler, debugger and TensorBoard (SDK v2, Estimator.latest_job_*_path)."""
    members = ("ProfilerConfig", "DebugHookConfig", "TensorBoardOutputConfig")
    addresses = (facts.request.get(member, {}).get("S3OutputPath", "") for member in members)
    return [facts.of_job(address) for address in addresses if address]


def outputs(facts: Facts) -> list[Location]:
    return [*own(facts), *checkpointed(facts), *monitored(facts)]


def inputs(facts: Facts) -> list[Location]:
    """Objects of the channels, whose keys begin with the address (API_S3DataSource, S3Uri).

    A manifest is one object. Which other ones it lists is not known here.
    """
    places = []
    for channel in facts.request.get("InputDataConfig", []):
        given = channel.get("DataSource", {}).get("S3DataSource", {})
        address = str(given.get("S3Uri", ""))
        if address.startswith("s3://"):
            rest = "" if str(given.get("S3DataType", "")).endswith("ManifestFile") else "*"
            places.append(facts.location(address, rest))
    return places


def places(facts: Facts) -> list[Location]:
    return [*inputs(facts), *outputs(facts)]


def objects(found: Places) -> Resources:
    """Objects of the places, without those that another one's pattern holds."""

    def resources(facts: Facts) -> list[str]:
        patterns = [place.bucket + place.keys for place in found(facts) if place.keys]
        folders = [pattern.removesuffix("*") for pattern in patterns if pattern.endswith("*")]
        return [
            pattern
            for pattern in patterns
            if not any(pattern.startswith(folder) and pattern != f"{folder}*" for folder in folders)
        ]

    return resources


def buckets(found: Places) -> Resources:
    """Buckets and access points of the places, whose objects are listed."""
    return lambda facts: [place.bucket for place in found(facts) if place.keys]


def directory_buckets(found: Places, *, unless: Places = lambda facts: []) -> Resources:
    """Directory buckets of the places, without those of others."""

    def resources(facts: Facts) -> list[str]:
        others = [place.bucket for place in unless(facts)]
        names = [place.bucket for place in found(facts) if not place.keys]
        return [name for name in names if name not in others]

    return resources


def log_group(facts: Facts) -> list[str]:
    return [facts.arn("logs", "log-group:/aws/sagemaker/TrainingJobs*")]


def log_streams(facts: Facts) -> list[str]:
    """The streams of the job's hosts, which begin with the job's name."""
    stream = f"{facts.job_name.removesuffix('*')}*"
    return [facts.arn("logs", f"log-group:/aws/sagemaker/TrainingJobs:log-stream:{stream}")]


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


def network(facts: Facts) -> list[str]:
    return [EVERY] if facts.request.get("VpcConfig") else []


def interfaces(facts: Facts) -> list[str]:
    """Network interfaces, which SageMaker creates for the hosts of a job in a VPC."""
    return [facts.arn("ec2", "network-interface/*")] if network(facts) else []


def interfaces_in_network(facts: Facts) -> list[str]:
    """With the job's subnets and groups, which may be shared by another account."""
    members = {"subnet": "Subnets", "security-group": "SecurityGroupIds"}
    given = facts.request.get("VpcConfig", {})
    places = [
        facts.arn("ec2", f"{kind}/{name}", account="*")
        for kind, member in members.items()
        for name in given.get(member, [])
    ]
    return [*interfaces(facts), *places]


def kms_key(facts: Facts, key: str) -> list[str]:
    """The ARN of a KMS key; by an unknown alias any key, which `by_alias` narrows."""
    if not key:
        return []
    if key in facts.key_arns:
        return [facts.key_arns[key]]
    if ":alias/" in key:
        return [f"{key.partition(':alias/')[0]}:key/*"]
    if key.startswith("arn:"):
        return [key]
    return [facts.arn("kms", "key/*" if key.startswith("alias/") else f"key/{key}")]


def by_alias(key: str) -> Condition:
    """The condition that a key has this alias; none for a key's ID or ARN.

    No ARN of a policy takes an alias (kms/latest/developerguide/alias-authorization.html).
    """
    _, is_alias, name = key.partition("alias/")
    return (("kms:ResourceAliases", f"alias/{name}"),) if is_alias else ()


def key_of_output(facts: Facts) -> str:
    return str(facts.request["OutputDataConfig"].get("KmsKeyId", ""))


def key_of_disk(facts: Facts) -> str:
    return str(facts.request.get("ResourceConfig", {}).get("VolumeKmsKeyId", ""))


def output_kms(facts: Facts) -> list[str]:
    return kms_key(facts, key_of_output(facts))


def output_alias(facts: Facts) -> Condition:
    return by_alias(key_of_output(facts))


def disk_kms(facts: Facts) -> list[str]:
    return kms_key(facts, key_of_disk(facts))


def disk_alias(facts: Facts) -> Condition:
    return by_alias(key_of_disk(facts))


def data_keys(facts: Facts) -> list[str]:
    return list(facts.data_keys)


def secrets(facts: Facts) -> list[str]:
    """Secrets of Secrets Manager that the job's processes read.

    AWS adds a hyphen and six characters to a name, and an ARN may be given without them
    (secretsmanager/latest/userguide/troubleshoot.html).
    """
    names = [secret.name for _, secret in secret_keys(facts.job) if not secret.is_parameter]
    arns = [
        name if name.startswith("arn:") else facts.arn("secretsmanager", f"secret:{name}")
        for name in names
    ]
    is_whole = re.compile(r"arn:.+-[A-Za-z0-9]{6}")
    return [
        arn if name == arn and is_whole.fullmatch(arn) else f"{arn}-??????"
        for name, arn in zip(names, arns, strict=True)
    ]


def parameters(facts: Facts) -> list[str]:
    """Secrets of Parameter Store."""
    names = [secret.name for _, secret in secret_keys(facts.job) if secret.is_parameter]
    return [
        name if name.startswith("arn:") else facts.arn("ssm", f"parameter/{name.lstrip('/')}")
        for name in names
    ]


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
    repository_arn = facts.variables.get(requirements.CODEARTIFACT, "")
    return [repository_arn] if repository_arn else []


def packages_domain(facts: Facts) -> list[str]:
    """The domain of that repository."""
    domains = []
    for arn in packages(facts):
        place, _, path = arn.partition(":repository/")
        domains.append(f"{place}:domain/{path.split('/')[0]}")
    return domains


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
    return [EVERY] if facts.creates("endpoint") else []


def tagged_kinds(facts: Facts) -> list[str]:
    """What is created with the tags of its job, where it has any."""
    if facts.created is not None and not facts.request.get("Tags"):
        return []
    return deployed("model", "endpoint", "endpoint-config")(facts)


def inference_repositories(facts: Facts) -> list[str]:
    """Repositories of the image that the model answers in: the named one, else AWS's own."""
    if facts.inference_image:
        return repository_of(facts, facts.inference_image)
    place = facts.job.region
    account = images.REGISTRIES.get(place, "*")
    name = inference_images.CPU.split(":")[0]
    return [facts.arn("ecr", f"repository/{name}", account=account, region=place)]


def endpoint_logs(facts: Facts) -> list[str]:
    if not facts.creates("endpoint"):
        return []
    name = facts.job_name.lower().removesuffix("*")
    return [facts.arn("logs", f"log-group:/aws/sagemaker/Endpoints/{name}*")]


# What preflight looks up of what a request names (named.py, network.py).


def private_image(facts: Facts) -> list[str]:
    """The repository of an image that is not AWS's, of which ECR answers questions."""
    image = str(facts.request["AlgorithmSpecification"].get("TrainingImage", ""))
    return [] if images.aws_image(image) else repository(facts)


def file_systems(kind: str) -> Resources:
    """File systems of the channels, of a kind of AWS's."""

    def resources(facts: Facts) -> list[str]:
        service = "elasticfilesystem" if kind == "EFS" else "fsx"
        sources = [c.get("DataSource", {}) for c in facts.request.get("InputDataConfig", [])]
        systems = [source.get("FileSystemDataSource", {}) for source in sources]
        return [
            facts.arn(service, f"file-system/{system.get('FileSystemId', '')}")
            for system in systems
            if system.get("FileSystemType") == kind
        ]

    return resources


def every(resources: Resources) -> Resources:
    """Everything, of an action without resources, where there are some of these."""
    return lambda facts: [EVERY] if resources(facts) else []


def training_plans(facts: Facts) -> list[str]:
    plans = resources.plans(facts.request.get("ResourceConfig", {}))
    return [arn for _, arn, _ in plans]


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
PRICES = "service-authorization/latest/reference/list_awspricelist.html"
IDENTITIES = "service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html"
QUOTAS = "service-authorization/latest/reference/list_servicequotas.html"
USAGE = "AmazonCloudWatch/latest/monitoring/CloudWatch-Service-Quota-Integration.html"
NETWORK = "service-authorization/latest/reference/list_amazonec2.html"
REPOSITORIES = "service-authorization/latest/reference/list_amazonelasticcontainerregistry.html"
SYSTEMS = "sagemaker/latest/dg/model-access-training-data.html"
EXPRESS = "AmazonS3/latest/userguide/s3-express-security-iam.html"


def passed_to_sagemaker(facts: Facts) -> Condition:
    return (("iam:PassedToService", SAGEMAKER),)


def token_for_codeartifact(facts: Facts) -> Condition:
    return (("sts:AWSServiceName", "codeartifact.amazonaws.com"),)


def only_reads(facts: Facts) -> Condition:
    """A session that is opened without a mode then reads (API_CreateSession, SessionMode)."""
    return (("s3express:SessionMode", "ReadOnly"),)


def unconditional(facts: Facts) -> Condition:
    return ()


def _lines(
    who: str, actions: str, resources: Resources, page: str, condition: Conditions = unconditional
) -> Iterator[Permission]:
    """A line for each action of one service, which is before the colon."""
    service, _, names = actions.partition(":")
    for name in names.split():
        yield Permission(who, f"{service}:{name}", resources, page, condition)


TABLE: tuple[Permission, ...] = (
    *_lines(CALLER, "sagemaker:CreateTrainingJob", single_job, IAM),
    *_lines(CALLER, "sagemaker:CreateHyperParameterTuningJob", search, IAM),
    *_lines(CALLER, "sagemaker:AddTags", tagged, IAM),
    *_lines(CALLER, "iam:PassRole", execution_role, PASSING, passed_to_sagemaker),
    *_lines(CALLER, "s3:PutObject", objects(source), S3),
    *_lines(CALLER, "s3express:CreateSession", directory_buckets(source), EXPRESS),
    *_lines(CALLER, "kms:GenerateDataKey Decrypt", output_kms, S3, output_alias),
    *_lines(CALLER, "sagemaker:DescribeTrainingJob StopTrainingJob", single_job, IAM),
    *_lines(CALLER, "sagemaker:UpdateTrainingJob", keeping_job, IAM),
    *_lines(CALLER, "logs:DescribeLogStreams", log_group, ROLES),
    *_lines(CALLER, "logs:GetLogEvents", log_streams, ROLES),
    *_lines(ROLE, "s3:GetObject", objects(places), ROLES),
    *_lines(ROLE, "s3:PutObject", objects(outputs), ROLES),
    *_lines(ROLE, "s3:DeleteObject", objects(checkpointed), RESUME),
    *_lines(ROLE, "s3:ListBucket", buckets(places), ROLES),
    *_lines(
        ROLE,
        "s3express:CreateSession",
        directory_buckets(inputs, unless=outputs),
        EXPRESS,
        only_reads,
    ),
    *_lines(ROLE, "s3express:CreateSession", directory_buckets(outputs), EXPRESS),
    *_lines(ROLE, "logs:CreateLogGroup DescribeLogStreams", log_group, ROLES),
    *_lines(ROLE, "logs:CreateLogStream PutLogEvents", log_streams, ROLES),
    *_lines(ROLE, "cloudwatch:PutMetricData", everything, ROLES),
    *_lines(ROLE, "ecr:GetAuthorizationToken", every(repository), ROLES),
    *_lines(ROLE, "ecr:BatchCheckLayerAvailability BatchGetImage", repository, ROLES),
    *_lines(ROLE, "ecr:GetDownloadUrlForLayer", repository, ROLES),
    *_lines(ROLE, "ec2:CreateNetworkInterface", interfaces_in_network, ROLES),
    *_lines(ROLE, "ec2:DeleteNetworkInterface", interfaces, ROLES),
    *_lines(ROLE, "ec2:CreateNetworkInterfacePermission", interfaces, ROLES),
    *_lines(ROLE, "ec2:DeleteNetworkInterfacePermission", interfaces, ROLES),
    *_lines(ROLE, "ec2:DescribeNetworkInterfaces DescribeVpcs DescribeSubnets", network, ROLES),
    *_lines(ROLE, "ec2:DescribeDhcpOptions DescribeSecurityGroups", network, ROLES),
    *_lines(ROLE, "kms:Encrypt Decrypt GenerateDataKey", output_kms, ROLES, output_alias),
    *_lines(ROLE, "kms:CreateGrant DescribeKey", disk_kms, ROLES, disk_alias),
    *_lines(ROLE, "kms:Decrypt", data_keys, ROLES),
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
    *_lines(ROLE, "sts:GetServiceBearerToken", every(packages), CODE, token_for_codeartifact),
    *_lines(ROLE, "ssmmessages:CreateControlChannel CreateDataChannel", remote_shell, SHELL),
    *_lines(ROLE, "ssmmessages:OpenControlChannel OpenDataChannel", remote_shell, SHELL),
)


# What preflight looks up, and what `list` reads. None of it changes anything, and preflight rejects
# no job for the lack of it.
LOOKING: tuple[Permission, ...] = (
    *_lines(LOOKER, "iam:GetRole", roles, IDENTITIES),
    *_lines(LOOKER, "iam:SimulatePrincipalPolicy", principals, IDENTITIES),
    *_lines(LOOKER, "sagemaker:ListTrainingJobs", everything, IAM),
    *_lines(LOOKER, "servicequotas:ListServiceQuotas", everything, QUOTAS),
    *_lines(LOOKER, "servicequotas:ListAWSDefaultServiceQuotas", everything, QUOTAS),
    *_lines(LOOKER, "cloudwatch:GetMetricData", everything, USAGE),
    *_lines(LOOKER, "pricing:GetProducts", everything, PRICES),
    *_lines(LOOKER, "s3:ListBucket", buckets(places), S3),
    *_lines(LOOKER, "s3express:CreateSession", directory_buckets(places), EXPRESS, only_reads),
    *_lines(LOOKER, "ec2:DescribeSubnets DescribeSecurityGroups", network, NETWORK),
    *_lines(LOOKER, "ec2:DescribeRouteTables DescribeVpcEndpoints", network, NETWORK),
    *_lines(LOOKER, "ecr:DescribeImages", private_image, REPOSITORIES),
    *_lines(LOOKER, "elasticfilesystem:DescribeFileSystems", file_systems("EFS"), SYSTEMS),
    *_lines(LOOKER, "elasticfilesystem:DescribeMountTargets", file_systems("EFS"), SYSTEMS),
    *_lines(LOOKER, "fsx:DescribeFileSystems", every(file_systems("FSxLustre")), SYSTEMS),
    *_lines(LOOKER, "kms:DescribeKey", output_kms, S3, output_alias),
    *_lines(LOOKER, "kms:DescribeKey", disk_kms, S3, disk_alias),
    *_lines(LOOKER, "secretsmanager:DescribeSecret", secrets, SECRETS),
    *_lines(LOOKER, "ssm:DescribeParameters", every(parameters), SSM),
    *_lines(LOOKER, "sagemaker:DescribeMlflowTrackingServer", tracking_server, IAM),
    *_lines(LOOKER, "sagemaker:DescribeMlflowApp", tracking_app, IAM),
    *_lines(LOOKER, "sagemaker:DescribeTrainingPlan", training_plans, IAM),
)


# What `deploy` and `undeploy` need: no job is refused for the lack of it.
DEPLOYMENT: tuple[Permission, ...] = (
    *_lines(DEPLOYER, "sagemaker:DescribeTrainingJob ListTags", single_job, IAM),
    *_lines(DEPLOYER, "sagemaker:CreateModel DeleteModel", deployed("model"), IAM),
    *_lines(
        DEPLOYER,
        "sagemaker:CreateEndpointConfig DeleteEndpointConfig",
        deployed("endpoint-config"),
        IAM,
    ),
    *_lines(DEPLOYER, "sagemaker:CreateEndpoint", deployed("endpoint", "endpoint-config"), IAM),
    *_lines(DEPLOYER, "sagemaker:DeleteEndpoint", deployed("endpoint"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeModel", looked_for("model"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeEndpointConfig", looked_for("endpoint-config"), IAM),
    *_lines(DEPLOYER, "sagemaker:DescribeEndpoint", looked_for("endpoint"), IAM),
    *_lines(DEPLOYER, "sagemaker:InvokeEndpoint", deployed("endpoint"), IAM),
    *_lines(DEPLOYER, "sagemaker:AddTags", tagged_kinds, IAM),
    *_lines(DEPLOYER, "iam:PassRole", execution_role, PASSING, passed_to_sagemaker),
    *_lines(DEPLOYER, "s3:GetObject PutObject DeleteObject", objects(own), S3),
    *_lines(DEPLOYER, "s3:ListBucket", buckets(own), S3),
    *_lines(DEPLOYER, "s3express:CreateSession", directory_buckets(own), EXPRESS),
    *_lines(DEPLOYER, "pricing:GetProducts", everything, PRICES),
    *_lines(DEPLOYER, "iam:GetRole", roles, IDENTITIES),
    *_lines(DEPLOYER, "iam:SimulatePrincipalPolicy", principals, IDENTITIES),
    *_lines(DEPLOYER, "servicequotas:ListServiceQuotas", hosts, QUOTAS),
    *_lines(DEPLOYER, "servicequotas:ListAWSDefaultServiceQuotas", hosts, QUOTAS),
    *_lines(DEPLOYER, "kms:GenerateDataKey Decrypt", output_kms, S3, output_alias),
    *_lines(ENDPOINT, "s3:GetObject", objects(own), ROLES),
    *_lines(ENDPOINT, "s3:ListBucket", buckets(own), ROLES),
    *_lines(ENDPOINT, "s3express:CreateSession", directory_buckets(own), EXPRESS, only_reads),
    *_lines(ENDPOINT, "logs:CreateLogGroup CreateLogStream PutLogEvents", endpoint_logs, ROLES),
    *_lines(ENDPOINT, "logs:DescribeLogStreams", endpoint_logs, ROLES),
    *_lines(ENDPOINT, "cloudwatch:PutMetricData", everything, ROLES),
    *_lines(ENDPOINT, "ecr:GetAuthorizationToken", everything, ROLES),
    *_lines(ENDPOINT, "ecr:BatchCheckLayerAvailability", inference_repositories, ROLES),
    *_lines(ENDPOINT, "ecr:BatchGetImage GetDownloadUrlForLayer", inference_repositories, ROLES),
    *_lines(ENDPOINT, "ec2:CreateNetworkInterface", interfaces_in_network, ROLES),
    *_lines(ENDPOINT, "ec2:DeleteNetworkInterface", interfaces, ROLES),
    *_lines(ENDPOINT, "ec2:CreateNetworkInterfacePermission", interfaces, ROLES),
    *_lines(ENDPOINT, "ec2:DeleteNetworkInterfacePermission", interfaces, ROLES),
    *_lines(ENDPOINT, "ec2:DescribeNetworkInterfaces DescribeVpcs DescribeSubnets", network, ROLES),
    *_lines(ENDPOINT, "ec2:DescribeDhcpOptions DescribeSecurityGroups", network, ROLES),
    *_lines(ENDPOINT, "kms:Encrypt Decrypt GenerateDataKey", output_kms, ROLES, output_alias),
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
    """The same for what `deploy` creates: kind → request, of the same page."""
    model = requests.get("Model", {})
    network_of = model.get("VpcConfig", {})
    hosts = requests.get("EndpointConfig", {}).get("ProductionVariants", [])
    request = next(iter(requests.values()))
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    values: dict[str, Any] = {
        "sagemaker:NetworkIsolation": bool(model.get("EnableNetworkIsolation")),
        "sagemaker:VpcSubnets": network_of.get("Subnets"),
        "sagemaker:VpcSecurityGroupIds": network_of.get("SecurityGroupIds"),
        "sagemaker:InstanceTypes": [host["InstanceType"] for host in hosts],
        "aws:TagKeys": list(tags),
        **{f"aws:RequestTag/{key}": value for key, value in tags.items()},
    }
    return {key: value for key, value in values.items() if value not in (None, [], "")}
