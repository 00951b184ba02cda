"""The channels of a job: their addresses, and that each is read by an option or in src/."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning import hub
from smlightning.options import Option, declared_options
from smlightning_sagemaker.findings import Finding, cure_for_unknown_name, error, warning
from smlightning_sagemaker.job import aws, images, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import paths
from smlightning_sagemaker.preflight.settings import s3_address
from smlightning_sagemaker.project import Project


def keys(job: Job, project: Project) -> Iterator[Finding]:
    """The keys of channels that are tables: job.toml's, and AWS's members."""
    members = aws.shape("Channel").members
    for name, given in job.channels.items():
        if isinstance(given, str):
            continue
        known = request.channel_keys(given)
        if given.get("ChannelName", name) != name:
            problem = f"it renames the channel, but src/ reads {name}"
            cure = "remove it, and give the channel that name under [channels]"
            yield error(f"channels.{name}.ChannelName", problem, cure)
        for key in given:
            if key not in known and key not in members:
                problem = "a channel has no such key"
                yield error(f"channels.{name}.{key}", problem, cure_for_unknown_name(key, known))


def addresses(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The address of each channel in S3, apart from the checkpoints, and the VPC of the others."""
    checkpoints = body.get("CheckpointConfig", {}).get("S3Uri", "")
    for channel in body.get("InputDataConfig", []):
        key, sources = f"channels.{channel['ChannelName']}", channel.get("DataSource", {})
        if "FileSystemDataSource" in sources and "VpcConfig" not in body:
            problem = "hosts can reach this file system only in its VPC"
            yield error(key, problem, "set subnets and security_groups of that VPC in [network]")
        if "S3DataSource" not in sources:
            continue
        address = sources["S3DataSource"].get("S3Uri", "")
        yield from s3_address(job, key, address)
        if re.search(r"[*?]|\{.*\}", address):
            problem = f'"{address}" has a wildcard, and SageMaker does not expand it'
            yield error(key, problem, "write the folder, or the common prefix of the keys")
        elif aws.s3_uri(checkpoints) and (
            aws.within(address, checkpoints) or aws.within(checkpoints, address)
        ):
            problem = f"it overlaps with {key}, so checkpoints would become data"
            yield error("checkpoint_s3", problem, "use another folder")


def channel_names(job: Job, project: Project) -> Iterator[Finding]:
    """The container has a variable for each channel, SM_CHANNEL_ and the name in capitals."""
    names_of: dict[str, str] = {}
    for name in sorted(job.channels):
        key, variable = f"channels.{name}", f"SM_CHANNEL_{name.upper()}"
        if not re.fullmatch(r"\w+", name, re.ASCII):
            problem = f"{variable} is not a valid variable name"
            yield error(key, problem, "use letters, digits and underscores")
        elif variable in names_of:
            problem = f"channel {names_of[variable]} sets {variable}, too"
            yield error(key, problem, "rename one of them")
        names_of.setdefault(variable, name)


def texts_of_options(job: Job, project: Project) -> Iterator[tuple[str, str, str]]:
    """Key, option and value of each option of train.py whose value is a text."""
    declared = declared_options(project.options().cls)
    values = {name: option.default for name, option in declared.items()}
    for name, value in {**values, **job.hyperparameters}.items():
        if isinstance(value, str):
            yield f"hyperparameters.{name}", name, value


def unread_channels(job: Job, project: Project) -> Iterator[Finding]:
    """Every host downloads each channel, so one that nothing reads is a mistake."""
    values = {(option, value) for _, option, value in texts_of_options(job, project)}
    texts = {value for _, value in values}
    files = project.src.glob("*.py")
    code = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    for name in job.channels:
        folder = f"{paths.CHANNELS}{name}"
        by_path = any(f"{text}/".startswith(f"{folder}/") for text in texts)
        by_name = name in texts and "SM_CHANNEL_" in code
        by_dataset = name == paths.DATASET and ("dataset", name) in values
        if by_path or by_name or by_dataset or f"SM_CHANNEL_{name.upper()}" in code:
            continue
        cure = 'set hyperparameters.dataset = "training"'
        if name != "training":
            cure = f"name it training and {cure}"
            if "training" in job.channels:
                cure = f'give an option its folder, "{folder}"'
        problem = "no option reads it, and every host would download it"
        yield error(f"channels.{name}", problem, f"{cure}, or remove it")


def option_paths(job: Job, project: Project) -> Iterator[Finding]:
    """Options read from channels, the image or src/, and not from this machine."""
    declared = declared_options(project.options().cls)
    for key, option, value in texts_of_options(job, project):
        channel = paths.channel_of(option, value)
        if option == "model_name" and value in {*job.channels, paths.DATASET}:
            problem = f'"{value}" is the name of a channel, and {option} reads a folder'
            yield error(key, problem, f'write "{paths.CHANNELS}{value}"')
        elif channel:
            if channel not in job.channels:
                cure = f'add {channel[:80]} = "s3://bucket/folder/"'
                cure = cure_for_unknown_name(channel, job.channels) if job.channels else cure
                yield error(key, f"[channels] has no channel {channel[:80]}", cure)
        elif value.startswith("s3://"):
            problem = f'"{value[:80]}" is an address in S3, and training reads local files'
            yield warning(key, problem, "write it under [channels], and the channel here")
        elif option == "resume" and "/" not in value and value not in ("auto", "never"):
            problem = f'found "{value[:80]}", expected auto, never or the path of a checkpoint'
            yield error(key, problem, f'write "auto", or "{paths.CHANNELS}NAME/FILE.ckpt"')
        elif is_output(declared.get(option), option, value) or paths.travels(project, value):
            continue
        elif paths.is_local(option, value):
            name = "training" if option == "dataset" else option.removesuffix("_name")
            given = name if option == "dataset" else f"{paths.CHANNELS}{name}"
            # An image of your own may have such a path, too.
            may_exist = images.profile(job) is None and value.startswith("/")
            level = warning if may_exist and not paths.exists(value) else error
            similar = "" if paths.exists(value) else hub.similar_path(value)
            shown = f'"{value[:80]}"' + (f" (did you mean {similar}?)" if similar else "")
            yield level(
                key,
                f"{shown} is a path of this machine, which the job cannot read",
                "upload it, as by aws s3 cp --recursive; set its address under [channels], as "
                f'{name} = "s3://bucket/folder/"; and set {option} = "{given}"',
            )
        elif not value.startswith("/") and (similar := hub.similar_path(value)):
            problem = f'"{value[:80]}" is not here, but the similar path {similar} is'
            yield warning(key, problem, "correct it, if you mean this one")


def is_output(declared: Option | None, name: str, value: str) -> bool:
    """Whether an option is a folder for output: neither data nor weights.

    A run may resume with another value of such an option.
    """
    if declared is None or name == "resume":
        return False
    return declared.resume in ("free", "path") and not paths.is_file(value)
