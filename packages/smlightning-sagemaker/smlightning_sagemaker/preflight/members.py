"""Members of the request: AWS's limits, and values that src/ cannot work with."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, images, instances, launchers
from smlightning_sagemaker.job.job import KEY_OF_MEMBER, Job, cure_for_misplaced_key
from smlightning_sagemaker.preflight.secrets import texts
from smlightning_sagemaker.preflight.settings import s3_address
from smlightning_sagemaker.project import Project

OUTPUT = "OutputDataConfig.S3OutputPath"
ARN = re.compile(r"arn:(aws[a-z-]*):[\w-]*:([\w-]*):")
OF_REGION = ("OutputDataConfig", "ResourceConfig")  # members whose ARNs are in the job's region
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
PROFILE_FILES = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
OF_USER = ("Environment", "HyperParameters", "Tags")  # members with the user's own values

PIPE = (
    "Pipe",
    "Pipe mode creates no files, and src/ reads files",
    'use "File" or "FastFile"',
)
SHARDED = (
    "ShardedByS3Key",
    "each host would get a part of the data, and src/ expects all of it",
    "remove it",
)
GZIP = ("Gzip", "SageMaker unpacks it in Pipe mode only, which src/ cannot read", "remove it")
RECORDS = ("RecordIO", "it belongs to Pipe mode, which src/ cannot read", "remove it")
MANIFEST = (
    "AugmentedManifestFile",
    "it belongs to Pipe mode, which src/ cannot read",
    'write what it lists as a table of src/, or use "ManifestFile"',
)
LOCAL_CHECKPOINTS = ("", "training keeps its checkpoints in /opt/ml/checkpoints", "remove it")
# Member of [request] or key of a channel → value that src/ cannot use (empty: any), problem and
# cure.
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
    """The limits, except patterns and missing members of a key that has a clearer error."""
    errors = [f"{finding.key}." for finding in findings if finding.level == "error"]
    return [
        limit
        for limit in limits
        if limit.cure not in (aws.CHANGE_IT, aws.ADD_IT)
        or not any(f"{limit.key}.".startswith(key) for key in errors)
    ]


def beyond_limits(value: Any, shape: Any, path: str = "") -> Iterator[Finding]:
    """Parts of a member's value that are beyond the limits of its shape in botocore's model."""
    for violation in aws.violations(value, shape, path):
        key, problem, cure = key_of(violation.path), violation.problem, violation.cure
        if key == "name":
            continue  # settings.names says in words what is wrong
        if key == "instance_type":
            types = re.findall(r"ml\.[\w-]+", f"{problem} {cure}".lower())
            generations = {re.sub(r"\D", "", instances.family(kind)) for kind in types}
            if len(generations) > 1:  # p2 does not replace p9
                cure = "correct it"
            newer = "pip install --upgrade boto3, or --accept instance_type"
            cure = f"{cure.removesuffix('?')}? If it is newer than botocore: {newer}"
        yield error(key, problem, cure)


def key_of(path: str) -> str:
    """A member of the request as job.toml has it."""
    for member, key in KEY_OF_MEMBER.items():
        if f"{path}.".startswith(f"{member}."):
            return key + path[len(member) :]
    return f"request.{path}"


def places(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Output lies neither in data nor in the checkpoints, which every host downloads."""
    output = request["OutputDataConfig"]["S3OutputPath"]
    chosen = job.request.get("OutputDataConfig", {}).get("S3OutputPath")
    key = f"request.{OUTPUT}" if chosen else "bucket"
    if chosen:
        yield from s3_address(job, key, output)
        if job.bucket and aws.s3_location(output)[0] != job.bucket:
            yield warning("bucket", f"it has no effect: {key} sets another bucket", "remove it")
    for channel in request.get("InputDataConfig", []):
        folder = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        name = channel["ChannelName"]
        if name in job.channels and aws.s3_uri(folder) and aws.within(output, folder):
            yield error(
                key,
                f"{output} lies in channels.{name} ({folder}), so that models become its data",
                "use a folder next to the data, or the data's own folder in the channel",
            )
    if aws.s3_uri(job.checkpoint_s3) and aws.within(output, job.checkpoint_s3):
        problem = f"{output} lies in this folder, which every host downloads"
        yield error("checkpoint_s3", problem, "use a folder next to the output")


def unusable(job: Job, project: Project) -> Iterator[Finding]:
    """Values in [request] and [channels] that src/ cannot work with."""
    for key, text in texts({"channels": job.channels, "request": job.request}):
        value, problem, cure = UNUSABLE.get(key.rpartition(".")[2], (None, "", ""))
        if value in ("", text):
            yield error(key, problem, cure)


def environment(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Variables that the launcher or SageMaker sets itself, or that the container cannot use."""
    variables = request.get("Environment", {})
    for name in variables:
        if launchers.reserves(str(name)):
            problem = "the launcher or SageMaker's toolkit sets it on each host"
            yield error(f"environment.{name}", problem, "remove it")
    if "CUDA_VISIBLE_DEVICES" in variables:
        # The toolkit counts the GPUs of `nvidia-smi --list-gpus`, which ignores the variable.
        level = warning if launchers.launcher(job) == "none" else error
        problem = "it hides GPUs, and SageMaker starts a process for each GPU of the host"
        yield level("environment.CUDA_VISIBLE_DEVICES", problem, "use a smaller instance")
    for name in SOCKETS:
        if variables.get(name, "").lstrip("=") == "lo" and job.instance_count > 1:
            problem = "lo is the loopback interface, through which hosts do not reach each other"
            yield error(f"environment.{name}", problem, "remove it")
    if "AWS_PROFILE" in variables and not any(name in variables for name in PROFILE_FILES):
        level = error if images.profile(job) else warning  # an image of your own may have one
        problem = "the container has no file with AWS profiles"
        yield level("environment.AWS_PROFILE", problem, "remove it: code uses the job's role")


def partitions(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """ARNs are in the job's partition: China and GovCloud have their own."""
    if job.region not in aws.regions():  # `region` reports it
        return
    partition = aws.partition(job.region)
    named = {"hub_token_secret": job.hub_token_secret, "secrets": job.secrets}
    members = {member: value for member, value in request.items() if member not in OF_USER}
    for path, text in texts({**named, **members}):
        arn = ARN.match(text)
        key = key_of(path) if path.partition(".")[0] in members else path
        if arn and arn[1] != partition:
            problem = f'"{text}" is in partition {arn[1]}, and {job.region} is in {partition}'
            yield error(key, problem, "use one of the job's partition")
        elif arn and path.startswith(OF_REGION) and arn[2] not in ("", job.region):
            problem = f'"{text}" is in {arn[2]}, and the job in {job.region}'
            yield error(key, problem, "use one of the job's region")
