"""The channels of a job: their addresses, and that each is read by an option or in src/."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smlightning.launch import aws, images, request, resources
from smlightning.launch.findings import Finding, cure_for_unknown_name, error, warning
from smlightning.launch.job import Job
from smlightning.launch.preflight import paths
from smlightning.launch.preflight.settings import s3_address
from smlightning.options import Option, declared_options
from smlightning.project import Project


def keys(job: Job, project: Project) -> Iterator[Finding]:
    """The keys of channels that are tables: job.toml's, and AWS's members."""
    members = aws.shape("Channel").members
    for name, given in job.channels.items():
        if isinstance(given, str):
            continue
        known = request.channel_keys(given)
        if given.get("ChannelName", name) != name:
            problem = f"it renames the channel, and src/ looks for {name}"
            cure = "remove it, and give the channel that name under [channels]"
            yield error(f"channels.{name}.ChannelName", problem, cure)
        for key in given:
            if key not in known and key not in members:
                problem = "a channel has no such key"
                yield error(f"channels.{name}.{key}", problem, cure_for_unknown_name(key, known))


def addresses(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The address of each channel in S3, and that the checkpoints are kept elsewhere."""
    checkpoints = body.get("CheckpointConfig", {}).get("S3Uri", "")
    for channel in body.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource")
        if source is None:
            continue
        key, address = f"channels.{channel['ChannelName']}", source.get("S3Uri", "")
        folder = address.endswith("/") or address.count("/") < 3
        yield from s3_address(key, address)
        if source.get("S3DataType") == "ManifestFile" and folder:
            problem = f'"{address}" is a folder, and a manifest is one file'
            yield error(key, problem, "give the file's address")
        elif aws.directory_bucket(aws.s3_location(address)[0]) and not folder:
            # ListObjectsV2: "only prefixes that end in a delimiter (/) are supported".
            problem = f'"{address}" is in S3 Express One Zone, and its prefix ends in no slash'
            yield error(key, problem, "name a folder, with / at its end")
        elif re.search(r"[*?]|\{.*\}", address):
            problem = f'"{address}" has a wildcard, which S3 takes for a letter'
            yield error(key, problem, "name the folder, or the beginning that its keys share")
        elif aws.s3_uri(checkpoints) and (
            aws.within(address, checkpoints) or aws.within(checkpoints, address)
        ):
            problem = f"it and {key} overlap, and checkpoints would be data"
            yield error("checkpoint_s3", problem, "name another folder")


def file_systems(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A file system is reached in a VPC, whoever names it: job.toml, or an organisation's file."""
    usual_mode = body["AlgorithmSpecification"]["TrainingInputMode"]
    for channel in body.get("InputDataConfig", []):
        system = channel.get("DataSource", {}).get("FileSystemDataSource", {})
        key = f"channels.{channel['ChannelName']}"
        if not system:
            continue
        if not body.get("VpcConfig"):
            problem = "a file system can be reached in your VPC alone"
            yield error(key, problem, "fill [network]")
        if channel.get("InputMode", usual_mode) == "FastFile":
            problem = "FastFile streams from S3, and a file system is mounted as it is"
            yield error(key, problem, 'set input_mode = "File", or remove it')
        path = system.get("DirectoryPath", "/")
        if not path.startswith("/"):
            problem = f'directory_path "{path}" does not begin with a slash'
            example = '"/<mount name>/data"' if system.get("FileSystemType") != "EFS" else '"/data"'
            yield error(key, problem, f"as in {example}")


def groups(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A channel reaches every group of instances, since the ranks of each read all data."""
    names = {group.name for group in resources.groups(job)} - {""}
    for channel in body.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        given = source.get("InstanceGroupNames")
        if given is None or set(given) == names:
            continue
        key = f"channels.{channel['ChannelName']}"
        unknown = sorted(set(given) - names)
        if unknown:
            problem = f"the job has no instance group {', '.join(unknown)}"
        else:
            problem = f"hosts of {', '.join(sorted(names - set(given)))} would not get it"
        yield error(key, problem, "remove its instance groups, so that every host gets it")


def channel_names(job: Job, project: Project) -> Iterator[Finding]:
    """The container has a variable for each channel, SM_CHANNEL_ and the name in capitals."""
    names_of: dict[str, str] = {}
    for name in sorted(job.channels):
        key, variable = f"channels.{name}", f"SM_CHANNEL_{name.upper()}"
        if not re.fullmatch(r"\w+", name, re.ASCII):
            problem = f"{variable} is not a valid variable name"
            yield error(key, problem, "use letters, digits and underscores")
        elif variable in names_of:
            problem = f"{names_of[variable]} sets {variable} as well"
            yield error(key, problem, "rename one of them")
        names_of.setdefault(variable, name)


def texts_of_options(job: Job, project: Project) -> Iterator[tuple[str, str, str]]:
    """Key, option and value of each option of train.py whose value is a text, in a search too."""
    declared = declared_options(project.options().cls)
    values = {name: option.default for name, option in declared.items()}
    for name, value in {**values, **job.hyperparameters}.items():
        if isinstance(value, str):
            yield f"hyperparameters.{name}", name, value
    for name, tried in job.tune.ranges.items():
        for value in tried if isinstance(tried, list) else ():
            if isinstance(value, str):
                yield f"tune.ranges.{name}", name, value


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
        problem = "every host would download it and no option reads it"
        yield error(f"channels.{name}", problem, f"{cure}, or remove it")


def option_paths(job: Job, project: Project) -> Iterator[Finding]:
    """What an option reads is in a channel or in the image, and not on this machine."""
    declared = declared_options(project.options().cls)
    for key, option, value in texts_of_options(job, project):
        channel = paths.channel_of(option, value)
        if option == "model_name" and value in {*job.channels, paths.DATASET}:
            problem = f'"{value}" is the name of a channel, and {option} reads a folder'
            yield error(key, problem, f'write "{paths.CHANNELS}{value}"')
        elif channel:
            if channel not in job.channels:
                yield missing_channel(key, channel, job)
        elif value.startswith("s3://"):
            problem = f'"{value[:80]}" is an address, and the training job reads files'
            yield warning(key, problem, "name it under [channels], and the channel here")
        elif paths.in_every_container(value) or written(declared.get(option), option, value):
            continue
        elif paths.exists(value) or paths.only_local(value):
            if paths.exists(str(project.src / value)) and not Path(value).is_absolute():
                continue  # it travels with the code, in whose folder train.py starts
            absent = paths.exists(value) or paths.on_no_host(
                value, private_image=images.profile(job) is None
            )
            level = error if absent else warning
            yield level(
                key,
                f'"{value[:80]}" is a path of this machine, which the training job cannot read',
                "upload it, as by aws s3 cp --recursive; name its address under [channels], as "
                f'{channel_for(option)} = "s3://bucket/folder/"; and set {option} = '
                f'"{value_for(option)}"',
            )


def channel_for(option: str) -> str:
    """The name of a channel with what an option reads: one for each option."""
    return "training" if option == "dataset" else option.removesuffix("_name")


def value_for(option: str) -> str:
    """How an option names its channel: dataset by the name, any other by its folder."""
    channel = channel_for(option)
    return channel if option == "dataset" else f"{paths.CHANNELS}{channel}"


def written(declared: Option | None, name: str, value: str) -> bool:
    """Whether an option names a folder for output, which need not be there.

    That is one which is neither of data nor of weights: a run may resume with another value.
    """
    if declared is None or name == "resume":
        return False
    return declared.resume in ("free", "path") and not paths.is_file(value)


def missing_channel(key: str, channel: str, job: Job) -> Finding:
    twins = [name for name in job.channels if name.lower() == channel.lower()]
    cure = f'add {channel[:80]} = "s3://bucket/folder/"'
    if twins:
        cure = f"rename {twins[0]}: case counts"
    return error(key, f"[channels] has no {channel[:80]} to read", cure)
