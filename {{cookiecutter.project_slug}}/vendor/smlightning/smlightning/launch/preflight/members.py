"""Members of the request: AWS's limits of each, and what src/ or the instances cannot work with."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from smlightning.launch import aws, connections, instances, launchers, requirements, resources
from smlightning.launch.findings import Finding, error, warning
from smlightning.launch.job import KEY_OF_MEMBER, Create, Job, cure_for_misplaced_key
from smlightning.launch.preflight.secrets import texts
from smlightning.launch.preflight.settings import s3_address
from smlightning.project import Project

OUTPUT = "OutputDataConfig.S3OutputPath"
DISK_KEY = "ResourceConfig.VolumeKmsKeyId"
ARN = re.compile(r"arn:(aws[a-z-]*):[\w-]*:([\w-]*):")
AWS_HOST = re.compile(r"\.(amazonaws\.com(?:\.cn)?)(?=[:/]|$)")
OF_REGION = ("OutputDataConfig", "ResourceConfig")  # members whose ARNs are of the job's region
OF_OWNER = ("Environment", "HyperParameters", "Tags")  # members whose values are the owner's own
INTERVALS = (100, 200, 500, 1000, 5000, 60_000)  # ProfilerConfig, ProfilingIntervalInMilliseconds
# Variables by which libraries choose the network between hosts.
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
FILES_OF_PROFILES = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")

PIPE = (
    "Pipe",
    "a pipe holds no files, and src/ reads folders of files",
    'take "File" or "FastFile"',
)
SHARDED = (
    "ShardedByS3Key",
    "each host would get a part, and the ranks divide all data",
    "remove it",
)
GZIP = ("Gzip", "SageMaker unpacks it in Pipe mode alone, which src/ cannot read", "remove it")
RECORDS = ("RecordIO", "it is of Pipe mode, which src/ cannot read", "remove it")
MANIFEST = (
    "AugmentedManifestFile",
    "it is of Pipe mode, which src/ cannot read",
    'write what it lists as a table of src/, or take "ManifestFile"',
)
LOCAL_CHECKPOINTS = ("", "training keeps its checkpoints in /opt/ml/checkpoints", "remove it")
# Members of a request of which AWS takes one; with "", none. From botocore 1.44.8: documentation of
# ResourceConfig's InstancePreferences, InstancePlacementConfig and SelectedInstance…, of
# InstancePreference's TrainingPlanArns, and of AlgorithmSpecification. Of warm pools:
# https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html, Considerations.
PREFERENCES = "ResourceConfig.InstancePreferences"
EXCLUSIVE = (
    (PREFERENCES, "ResourceConfig.InstanceGroups"),
    (PREFERENCES, "ResourceConfig.InstancePlacementConfig"),
    (PREFERENCES, "EnableManagedSpotTraining"),
    ("ResourceConfig.InstancePreferences.TrainingPlanArns", "ResourceConfig.TrainingPlanArn"),
    ("ResourceConfig.InstanceGroups", "ResourceConfig.KeepAlivePeriodInSeconds"),
    ("ResourceConfig.SelectedInstanceType", ""),
    ("ResourceConfig.SelectedInstanceCount", ""),
    ("ResourceConfig.InstancePlacementConfig", ""),  # for UltraServers: no image here runs on them
    ("AlgorithmSpecification.AlgorithmName", "AlgorithmSpecification.TrainingImage"),
)
# What AWS does not take, or src/ cannot work with: member of [request], or key of a channel → value
# (empty: any), problem and cure.
UNUSABLE = {
    "input_mode": PIPE,
    "InputMode": PIPE,
    "TrainingInputMode": PIPE,
    "distribution": SHARDED,
    "S3DataDistributionType": SHARDED,
    "LocalPath": LOCAL_CHECKPOINTS,
    "compression": GZIP,
    "CompressionType": GZIP,
    "record_wrapping": RECORDS,
    "RecordWrapperType": RECORDS,
    "s3_data_type": MANIFEST,
    "S3DataType": MANIFEST,
}


def limits(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The request against botocore's model: types, lengths, counts, ranges, patterns, names."""
    shape = aws.shape("CreateTrainingJobRequest")
    for finding in beyond_limits(request, shape):
        name = finding.key.removeprefix("request.")
        unknown = name in job.request and name not in shape.members
        cure = cure_for_misplaced_key(name, project) if unknown else ""
        yield replace(finding, cure=cure) if cure else finding


def unsaid(limits: list[Finding], findings: list[Finding]) -> list[Finding]:
    """Limits without those whose bare pattern or missing member an error already says in words."""
    errors = [f"{finding.key}." for finding in findings if finding.level == "error"]
    return [
        limit
        for limit in limits
        if limit.cure not in (aws.CHANGE_IT, aws.ADD_IT)
        or not any(f"{limit.key}.".startswith(key) for key in errors)
    ]


def exclusive(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Members that AWS does not take together."""
    for path, other in EXCLUSIVE:
        if not is_set(request, path) or (other and not is_set(request, other)):
            continue
        key = key_of(path)
        if not is_set({"request": job.request}, key) and path == PREFERENCES:
            key = "instance_type"  # a list
        if other:
            shown = key_of(other)
            yield error(key, f"AWS does not take it with {shown}", f"remove it, or {shown}")
        else:
            yield error(key, "AWS does not take it from a job of this project", "remove it")


def documented(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """What AWS rejects by the documentation of a member, of which its model holds no limit."""
    output, profiler = request["OutputDataConfig"], request.get("ProfilerConfig", {})
    bucket = aws.s3_location(output["S3OutputPath"])[0]
    if output.get("KmsKeyId") and aws.directory_bucket(bucket):
        problem = "S3 Express One Zone takes no KMS key for output"  # OutputDataConfig, KmsKeyId
        yield error(key_of("OutputDataConfig.KmsKeyId"), problem, "remove it")
    interval = profiler.get("ProfilingIntervalInMilliseconds", INTERVALS[0])
    if interval not in INTERVALS:
        yield error(
            "request.ProfilerConfig.ProfilingIntervalInMilliseconds",
            f"{interval} is none of AWS's intervals",
            f"take one of {', '.join(map(str, INTERVALS))}",
        )


def is_set(value: Any, path: str) -> bool:
    """Whether a request has the member, in a list at least once."""
    if isinstance(value, list):
        return any(is_set(item, path) for item in value)
    name, _, rest = path.partition(".")
    if not isinstance(value, dict) or not value.get(name):
        return False
    return not rest or is_set(value[name], rest)


def beyond_limits(value: Any, shape: Any, path: str = "") -> Iterator[Finding]:
    """What of a member's value is beyond the limits of its shape in botocore's model."""
    for violation in aws.violations(value, shape, path):
        key, cure = key_of(violation.path), violation.cure
        if key == "name":
            cure = "use letters, digits and hyphens, at most 47: a timestamp is added"
        elif key == "instance_type":
            end = "" if cure.endswith("?") else "."
            newer = "pip install --upgrade boto3, or --accept instance_type"
            cure = f"{cure}{end} If it is newer than that: {newer}"
        yield error(key, violation.problem, cure)


def key_of(path: str) -> str:
    """A member of the request as job.toml has it."""
    for member, key in KEY_OF_MEMBER.items():
        if f"{path}.".startswith(f"{member}."):
            return key + path[len(member) :]
    return f"request.{path}"


def places(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Output is an address in S3 that lies neither in data nor in the checkpoints: the next job
    would take models for data, and every host would download them with its checkpoints.
    """
    output = request["OutputDataConfig"]["S3OutputPath"]
    named = job.request.get("OutputDataConfig", {}).get("S3OutputPath")
    key = f"request.{OUTPUT}" if named else "bucket"
    if named:
        yield from s3_address(key, output)
        if job.bucket and aws.s3_location(output)[0] != job.bucket:
            yield warning("bucket", f"it has no effect, since {key} names another", "remove it")
    for channel in request.get("InputDataConfig", []):
        folder = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        name = channel["ChannelName"]
        if name in job.channels and aws.s3_uri(folder) and aws.within(output, folder):
            yield error(
                key,
                f"{output} lies in channels.{name} ({folder}), so that models become its data",
                "name a folder beside the data, or the data's own folder in the channel",
            )
    if aws.s3_uri(job.checkpoint_s3) and aws.within(output, job.checkpoint_s3):
        problem = f"{output} lies in it, and every host downloads what it holds"
        yield error("checkpoint_s3", problem, "name a folder next to the output")


def default_buckets(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SageMaker's default buckets have their region in their name, and jobs read one region's."""
    addresses = {"bucket": f"s3://{job.bucket}", "checkpoint_s3": job.checkpoint_s3}
    for path, text in texts({"channels": job.channels, "request": job.request}):
        addresses[path] = text
    for key, address in addresses.items():
        match = re.match(r"s3://sagemaker-([a-z]{2,5}(?:-[a-z]+)+-\d)-\d{12}", address)
        if match and match[1] != job.region and job.region in aws.regions():
            problem = f"{match[0].removeprefix('s3://')} is in {match[1]}, the job in {job.region}"
            yield error(key, problem, "take a bucket in the job's region")


def unusable(job: Job, project: Project) -> Iterator[Finding]:
    """What in [request] and [channels] AWS does not take, or src/ cannot work with."""
    for key, text in texts({"channels": job.channels, "request": job.request}):
        value, problem, cure = UNUSABLE.get(key.rpartition(".")[2], (None, "", ""))
        if value in ("", text):
            yield error(key, problem, cure)


def isolation(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The processes of an isolated container connect to nothing beyond the job's hosts."""
    if not request.get("EnableNetworkIsolation"):
        return
    for connection in connections.connections(job, request, project):
        level = error if connection.needed else warning
        problem = f"{connection.key} needs {connection.to}, which no isolated container reaches"
        cure = f"{connection.cure}, or set EnableNetworkIsolation to false"
        yield level("request.EnableNetworkIsolation", problem, cure)


def offline_hub(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A variable that keeps the hub's client offline goes with a cache that the container has."""
    variables = request.get("Environment", {})
    variable = connections.offline_variable(variables)
    if not variable:
        return
    for key, name, is_certain in connections.hub_names(job, project):
        is_mistake = is_certain and not connections.may_be_cached(job, variables)
        level = error if is_mistake else warning
        problem = f'{key} = "{name}" is on the Hugging Face hub, and this keeps the job offline'
        cure = "remove it, or set HF_HOME to the folder of a channel that holds the hub's cache"
        yield level(f"environment.{variable}", problem, cure)


def environment(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Variables that the launcher or SageMaker sets itself."""
    variables = request.get("Environment", {})
    launcher = launchers.launcher(job)
    for name in variables:  # of the SDK's configuration file, where a name may be any value
        if launchers.reserves(str(name)):
            problem = "the launcher or SageMaker's toolkit sets it on each host"
            yield error(f"environment.{name}", problem, "remove it")
    if "CUDA_VISIBLE_DEVICES" in variables:
        # The toolkit counts the GPUs of `nvidia-smi --list-gpus`, which does not look at it.
        level = warning if launcher == "none" else error
        problem = "a process is started for each GPU of the host, and this hides some from it"
        yield level("environment.CUDA_VISIBLE_DEVICES", problem, "take a smaller instance")
    for name in PROFILES:
        if name in variables and not any(file in variables for file in FILES_OF_PROFILES):
            problem = "the hosts have no profile of AWS, and use the job's role"
            yield error(f"environment.{name}", problem, "remove it")
    for name in INTERFACES:
        if variables.get(name) in ("lo", "=lo") and resources.host_count(job) > 1:
            problem = "hosts do not reach each other by the interface lo"
            yield error(f"environment.{name}", problem, "remove it")
    is_set_by_toolkit = launcher in ("torch_distributed", "none")
    if is_set_by_toolkit and variables.get("NCCL_DEBUG", "WARN") != "WARN":
        problem = f"the toolkit sets NCCL_DEBUG to WARN under {launcher}"
        yield warning("environment.NCCL_DEBUG", problem, "remove it; under mpirun it arrives")


def created(job: Job, project: Project) -> Iterator[Finding]:
    """Members of [create] against AWS's model, as far as they are judged without the rest."""
    for kind in Create.model_fields:
        for violation in aws.violations(getattr(job.create, kind), aws.request_shape(kind)):
            if violation.cure != aws.ADD_IT:  # a command adds what AWS requires
                yield error(f"create.{kind}.{violation.path}", violation.problem, violation.cure)


def tags(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Tags that only AWS may set."""
    for tag in request.get("Tags", []):
        if str(tag["Key"]).lower().startswith("aws:"):
            problem = "AWS keeps tags that begin with aws: to itself"
            yield error(f"tags.{tag['Key']}", problem, "rename it")


def partitions(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """ARNs and hosts of AWS are of the job's partition: China and GovCloud have their own. What
    encrypts or holds capacity is of its region, too.
    """
    if job.region not in aws.regions():  # said already
        return
    partition, suffix = aws.partition(job.region), aws.dns_suffix(job.region)
    named = {"mlflow": job.mlflow, "hub_token_secret": job.hub_token_secret, "secrets": job.secrets}
    members = {member: value for member, value in request.items() if member not in OF_OWNER}
    for path, text in texts({**named, "environment": job.environment, **members}):
        member = path.partition(".")[0]
        key = key_of(path) if member in members else path
        owners = member == "environment" and path != f"environment.{requirements.CODEARTIFACT}"
        level = warning if owners else error
        arn, host = ARN.match(text), AWS_HOST.search(text)
        if arn and arn[1] != partition:
            problem = f'"{text}" is of partition {arn[1]}, and {job.region} is in {partition}'
            yield level(key, problem, "take one from there")
        elif host and host[1] != suffix:
            problem = f'"{text}" is of {host[1]}, and the hosts of {job.region} are of {suffix}'
            yield level(key, problem, "take one from there")
        elif arn and member in OF_REGION and arn[2] not in ("", job.region):
            problem = f'"{text}" is in {arn[2]}, and the job in {job.region}'
            yield error(key, problem, "take one of the job's region")


def disk_key(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The KMS key of the hosts' disks."""
    disk = str(request["ResourceConfig"].get("VolumeKmsKeyId", ""))
    clusters = resources.candidates(request["ResourceConfig"])
    types = [[group.instance_type for group in cluster] for cluster in clusters]
    with_nvme = [kinds for kinds in types if all(map(instances.nvme, kinds))]
    shown = " and ".join(dict.fromkeys(with_nvme[0])) if with_nvme else ""
    if with_nvme and job.volume_gb != Job.model_fields["volume_gb"].default:
        # ResourceConfig, VolumeSizeInGB: "Available storage is fixed to the NVMe-type instance's".
        problem = f"{shown} has NVMe disks of a fixed size, and AWS adds no other"
        yield warning("volume_gb", problem, "remove it, and see that the disks are large enough")
    if disk and with_nvme:
        problem = f"{shown} encrypts its own NVMe disks, and AWS refuses a key"
        yield error(f"request.{DISK_KEY}", problem, "remove it")
    elif "alias/" in disk:
        problem = f'"{disk}" is an alias, which AWS takes for OutputDataConfig.KmsKeyId alone'
        yield error(f"request.{DISK_KEY}", problem, "give the key's ID or ARN")
