"""Single values of job.toml that AWS would reject, or would read otherwise than meant."""

import re
from collections.abc import Iterator
from functools import partial

from smlightning import hub
from smlightning.stored_secrets import REFERENCE
from smlightning_sagemaker.findings import Finding, each_of, error, first_of, warning
from smlightning_sagemaker.job import aws, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

S3_EXAMPLE = 'as in "s3://bucket/folder/"'
# SageMaker's default bucket of an account, whose name has its region.
DEFAULT_BUCKET = re.compile(r"s3://sagemaker-([a-z-]+-\d)-\d{12}(/|$)", re.ASCII)
BUCKET_RULE = "a name has 3 to 63 lower-case letters, digits, hyphens and dots"
# Addresses of S3's own hosts, which AWS's patterns accept in place of s3://.
S3_HOST = re.compile(r"https://[\w.-]*\bs3\b[\w.-]*\.amazonaws\.com(\.cn)?/.*", re.ASCII)

# TrainingJobName has at most 63 characters; request.job_name adds 16.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,46}")
ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+|[\w+=,.@-]{1,64}", re.ASCII)
# As AWS's toolkit reads it (sagemaker-training 5.1.4, modules.py).
REPOSITORY = re.compile(r"arn:[^:]+:codeartifact:[^:]+:[^:]+:repository/[^/]+/.+")
REFERENCE_CURE = 'a name or an ARN, with ":KEY" for a key of its JSON, or "ssm:NAME"'
# Key of job.toml → pattern of its value, what it should be, and the cure.
NAMES = {
    "role": (ROLE, "the name or ARN of a role", "as in arn:aws:iam::<12 digits>:role/<name>"),
    "hub_token_secret": (REFERENCE, "the name of a secret", REFERENCE_CURE),
    f"environment.{requirements.CODEARTIFACT}": (
        REPOSITORY,
        "the ARN of a repository in CodeArtifact",
        "as in arn:aws:codeartifact:<region>:<account>:repository/<domain>/<repository>",
    ),
}


def spot(job: Job, project: Project) -> Iterator[Finding]:
    """Keys that spot instances do not go with."""
    if not job.spot.enabled:
        return
    yield from each_of(
        (
            job.spot.max_wait_s < job.max_run_s,
            error(
                "spot.max_wait_s",
                f"{job.spot.max_wait_s} is below max_run_s = {job.max_run_s}",
                "it counts training and waiting: raise it, or lower max_run_s",
            ),
        ),
        (
            not job.checkpoint_s3,
            error(
                "checkpoint_s3",
                "spot without checkpoints loses all at each interruption",
                'set it to "auto"',
            ),
        ),
        (
            job.keep_alive_s,
            error(
                "keep_alive_s",
                "spot instances cannot be kept",
                "set it to 0, or spot.enabled = false",
            ),
        ),
        (
            job.hyperparameters.get("resume", "auto") != "auto",
            error(
                "hyperparameters.resume",
                "with spot, each restart would begin there again, and lose its progress",
                'set it to "auto"',
            ),
        ),
    )


def names(job: Job, project: Project) -> Iterator[Finding]:
    """Names and ARNs of a role, a bucket and a secret."""
    if not NAME.fullmatch(job.name):
        problem = f'found "{job.name[:80]}", expected 1 to 47 letters, digits and hyphens'
        yield error("name", problem, "shorten or correct it; it begins with a letter or a digit")
    codeartifact = f"environment.{requirements.CODEARTIFACT}"
    values = {
        "role": job.role,
        "hub_token_secret": job.hub_token_secret,
        codeartifact: job.environment.get(requirements.CODEARTIFACT, ""),
    }
    for key, (pattern, expected, cure) in NAMES.items():
        if values[key] and not pattern.fullmatch(values[key]):
            yield error(key, f'"{values[key]}" is not {expected}', cure)
    if job.bucket and ("/" in job.bucket or not aws.s3_uri(f"s3://{job.bucket}")):
        problem = f'"{job.bucket}" is not the name of a bucket'
        yield error("bucket", problem, "give only the name: no s3://, no folder")
    elif job.bucket:
        yield from s3_address(job, "bucket", f"s3://{job.bucket}")
    for tag in job.tags:
        if tag.lower().startswith("aws:"):
            yield error(f"tags.{tag}", "AWS keeps tags that begin with aws:", "rename it")
    yield from secrets(job, project)


def s3_address(job: Job, key: str, address: str) -> Iterator[Finding]:
    """A text that AWS's patterns reject, or a default bucket of another region."""
    default = DEFAULT_BUCKET.match(address)
    if default and default[1] != job.region and job.region in aws.regions():
        problem = f"the bucket is in {default[1]}, the job in {job.region}"
        yield error(key, problem, "use one in the job's region")
    bucket = re.match(r"s3://([^/]*)", address)
    if bucket and not re.fullmatch(r"[\w.-]{3,255}|arn:.*", bucket[1], re.ASCII):
        yield error(key, f'"{bucket[1]}" in "{address}" is not the name of a bucket', BUCKET_RULE)
    elif not aws.s3_uri(address) and not S3_HOST.fullmatch(address):
        yield error(key, f'"{address}" is not an S3 address', S3_EXAMPLE)


def secrets(job: Job, project: Project) -> Iterator[Finding]:
    """[secrets]: valid variables, each with the name of a secret."""
    for variable, name in job.secrets.items():
        key = f"secrets.{variable}"
        wrong = partial(error, key)
        for_pip = requirements.PROXY.fullmatch(variable)
        yield from first_of(
            (
                not re.fullmatch(r"[A-Za-z_]\w*", variable, re.ASCII),
                wrong(f'"{variable}" is not a variable name', "as in WANDB_API_KEY"),
            ),
            (
                variable in job.environment,
                wrong("[environment] sets the same variable", "remove it there"),
            ),
            (
                launchers.reserves(variable),
                wrong(
                    "the launcher or SageMaker's toolkit sets it on each host",
                    "give it another name",
                ),
            ),
            (
                requirements.BEFORE_TRAINING.fullmatch(variable),
                wrong(
                    "pip runs before training reads its secrets, so pip cannot use it",
                    f"remove it, and {requirements.WITHOUT_LOGIN}",
                ),
            ),
            (
                for_pip and requirements.asks_an_index(job, project),
                warning(
                    key,
                    "training gets it, but pip runs earlier and does not",
                    f"for packages, {requirements.WITHOUT_LOGIN}",
                ),
            ),
            (
                variable == hub.TOKEN and job.hub_token_secret,
                wrong("hub_token_secret is the same secret", "set one of them"),
            ),
        )
        if not REFERENCE.fullmatch(name):
            shown = "the value" if name else '""'
            yield wrong(f"{shown} is not the name of a secret", REFERENCE_CURE)


def checkpoints(job: Job, project: Project) -> Iterator[Finding]:
    """The folder in S3 from which a job resumes."""
    folder = job.checkpoint_s3
    if folder in ("", "auto"):
        return
    yield from s3_address(job, "checkpoint_s3", folder)
    if aws.s3_uri(folder) and not re.fullmatch(r"s3://[^/]+/.*[^/].*", folder):
        problem = f"{folder} is a whole bucket, and every host would download it"
        yield error("checkpoint_s3", problem, "write the address of a folder in it")


def network(job: Job, project: Project) -> Iterator[Finding]:
    """IDs of subnets and security groups."""
    kinds = {"subnets": "subnet-", "security_groups": "sg-"}
    for key, start in kinds.items():
        for identifier in getattr(job.network, key):
            if not identifier.startswith(start):
                problem = f'"{identifier}" is not the ID of a {key[:-1].replace("_", " ")}'
                yield error(f"network.{key}", problem, f"as in {start}0123456789abcdef0")
