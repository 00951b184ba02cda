"""Channels: each is read by an option or in src/, and options read nothing else."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning.data.channel import CHANNEL
from smlightning.options import declared_options
from smlightning_sagemaker.findings import Finding, error, hint_for_unknown_name, warning
from smlightning_sagemaker.job import aws, images
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import paths, sent
from smlightning_sagemaker.project import Project

# Code that composes the names of channels' variables or folders, or lists all channels.
COMPOSED = re.compile(
    r"SM_CHANNEL_(?![A-Z0-9])|SM_CHANNELS\b|SM_INPUT|SM_TRAINING_ENV|channel_input_dirs"
    r"|inputdataconfig|input/data/?(?![\w/-])|/opt/ml(/input)?/?[\"']"
)


def names(request: dict[str, Any]) -> list[str]:
    """The channels of a request."""
    return [channel["ChannelName"] for channel in request.get("InputDataConfig", [])]


def unread(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Every host downloads each channel, so one that nothing reads is a mistake (API_Channel).

    If src/ reads channels by names that it composes, a channel whose name it never has is a
    warning.
    """
    everything = "\n".join(sent.texts(job, request, project)) if job.channels else ""
    is_composed = COMPOSED.search(everything)
    for name in job.channels:
        variable, folder = re.escape(f"SM_CHANNEL_{name.upper()}"), re.escape(paths.CHANNELS + name)
        wanted = rf"{variable}(?![\w-])|{folder}(?![\w-])"
        if is_composed:
            wanted += rf"|(?<![\w-]){re.escape(name)}(?![\w-])"
        by_dataset = name == CHANNEL == sent.options(job, project).get("dataset")
        if by_dataset or re.search(wanted, everything):
            continue
        level = warning if is_composed else error
        problem = "no option and no file of src/ reads it, and every host would download it"
        hint = 'name it training and set hyperparameters.dataset = "training", give an option '
        hint += f'its folder, "{paths.CHANNELS}{name}", or remove it'
        if "-" in name:  # SM_CHANNEL_MY-DATA, which a shell cannot export
            problem, hint = "its variable would have a hyphen", f"name it {name.replace('-', '_')}"
        yield level(f"channels.{name}", problem, hint)


def missing(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Options read channels that the job has.

    A model's name is a folder, or a repository of the hub: never a channel's name.
    """
    found = names(request)
    for option, value in sent.options(job, project).items():
        key, channel = f"hyperparameters.{option}", paths.channel_of(option, value)
        if option == "model_name" and value in {*found, CHANNEL}:
            problem = f'"{value}" is the name of a channel, and {option} reads a folder'
            yield error(key, problem, f'write "{paths.CHANNELS}{value}"')
        elif channel and channel not in found:
            hint = f'add {channel[:80]} = "s3://bucket/folder/"'
            hint = hint_for_unknown_name(channel, found) if found else hint
            yield error(key, f"[channels] has no channel {channel[:80]}", hint)


def local_paths(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Options read channels, the image or src/, and not this machine."""
    declared = declared_options(project.options().cls)
    for option, value in sent.options(job, project).items():
        key = f"hyperparameters.{option}"
        resumes = declared[option].resume if option in declared else ""
        is_output = resumes in ("free", "path") and option != "resume" and not paths.is_file(value)
        if value.startswith("s3://"):
            problem = f'"{value[:80]}" is an address in S3, and training reads local files'
            yield warning(key, problem, "write it under [channels], and the channel here")
        elif option == "resume" and "/" not in value and value not in ("auto", "never"):
            problem = f'found "{value[:80]}", expected auto, never or the path of a checkpoint'
            yield error(key, problem, f'write "auto", or "{paths.CHANNELS}NAME/FILE.ckpt"')
        elif is_output or paths.is_in_source(project, value):
            continue
        elif paths.is_local(option, value):
            # An image of your own may have such a path, too.
            may_exist = images.profile(job) is None and value.startswith("/")
            level = warning if may_exist and not paths.exists(value) else error
            name = "training" if option == "dataset" else option.removesuffix("_name")
            given = name if option == "dataset" else f"{paths.CHANNELS}{name}"
            problem = f'"{value[:80]}" is a path of this machine, which the job cannot read'
            hint = "upload it, as by aws s3 cp --recursive; set its address under [channels], as "
            hint += f'{name} = "s3://bucket/folder/"; and set {option} = "{given}"'
            yield level(key, problem, hint)


def other_paths(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No variable and no file of src/ has a path of this machine, or one that goes to S3 as data.

    A comment or an example may have one, so that a file's is a warning.
    """
    for name, value in job.environment.items():
        if found := paths.of_this_machine(value):
            level = error if found == value and images.profile(job) else warning
            problem = f"{found[:80]} is a path of this machine, which the job cannot read"
            yield level(f"environment.{name}", problem, "put the file into src/ or a channel")
    for name, text in sent.files(project).items():
        if not paths.OF_PERSON.search(text):
            continue
        for match in paths.OF_PERSON.finditer(sent.without_docstrings(name, text)):
            before = text[: match.start()].rpartition("\n")[2]
            if not before.lstrip().startswith("#"):
                line = text.count("\n", 0, match.start()) + 1
                problem = f"line {line} has {match[0][:80]}, a path of this machine"
                yield warning(name, problem, "read it from an option or a channel")
                break
    for option, value in sent.options(job, project).items():
        key = f"hyperparameters.{option}"
        if option.endswith(("data_dir", "cache_dir")) and re.fullmatch(paths.KEPT, value):
            problem = f"{value} goes to S3 with each model or checkpoint"
            yield warning(key, problem, "use a folder elsewhere, such as /tmp/data")
        elif option == "output_dir" and paths.of_this_machine(value):
            problem = f"{value[:80]} is a folder of this machine; a job stores in /opt/ml"
            yield warning(key, problem, "remove it")


def whole(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Each host gets all files of a channel: src/ divides the data among ranks itself.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html
    """
    for channel in request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        if source.get("S3DataDistributionType") == "ShardedByS3Key":
            problem = "ShardedByS3Key gives each host a part of the data; src/ expects all of it"
            yield error(f"channels.{channel['ChannelName']}", problem, "remove its distribution")


def pipe(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Pipe mode creates no files, and src/ reads files.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Channel.html (InputMode)
    """
    modes = {
        f"channels.{channel['ChannelName']}": channel.get("InputMode")
        for channel in request.get("InputDataConfig", [])
    }
    key = "request.AlgorithmSpecification.TrainingInputMode"
    modes[key] = request["AlgorithmSpecification"]["TrainingInputMode"]
    for key, mode in modes.items():
        if mode == "Pipe":
            yield error(key, "Pipe mode creates no files", 'use "File" or "FastFile"')


def same_variable(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The toolkit sets SM_CHANNEL_ and the name in capitals (sagemaker-training, to_env_vars)."""
    for name in job.channels:
        others = [each for each in job.channels if each != name and each.upper() == name.upper()]
        if others:
            problem = f"channel {others[0]} sets SM_CHANNEL_{name.upper()}, too"
            yield error(f"channels.{name}", problem, "rename one of them")


def overlapping(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No channel holds another one's files: an address is the beginning of keys, not a folder.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html (S3Uri)
    """
    found: dict[str, str] = {}
    for channel in request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        if source.get("S3DataType") == "S3Prefix" and "S3Uri" in source:
            found[channel["ChannelName"]] = source["S3Uri"]
    for name, uri in found.items():
        is_file = "." in uri.rpartition("/")[2]
        for other, address in found.items():
            if other > name and address == uri:
                problem = f"channel {other} has the same address, {uri}"
                yield warning(f"channels.{name}", problem, "remove one of them, or correct it")
            elif begins(uri, address):
                problem = f"{uri} is also the beginning of {address}, the channel {other}"
                hint = f'end it with a slash: "{uri}/"'
                hint = "put each file into a folder of its own" if is_file else hint
                yield (warning if is_file else error)(f"channels.{name}", problem, hint)


def begins(uri: str, address: str) -> bool:
    """Whether an address without a slash at its end begins the name of another file or folder."""
    (bucket, prefix), (other_bucket, key) = aws.s3_location(uri), aws.s3_location(address)
    if bucket != other_bucket or not prefix or prefix.endswith("/"):
        return False
    return key.startswith(prefix) and key.removeprefix(prefix)[:1] not in ("", "/")


def addresses(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Addresses of which SageMaker finds nothing, after the start.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html
    """
    for channel in request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        key, uri = f"channels.{channel['ChannelName']}", str(source.get("S3Uri", ""))
        bucket, prefix = aws.s3_location(uri)
        if str(source.get("S3DataType", "")).endswith("ManifestFile") and uri.endswith("/"):
            problem = f"{uri} is a folder, and {source['S3DataType']} needs the address of a file"
            yield error(key, problem, "write the manifest's address, or remove s3_data_type")
        elif bucket.endswith("--x-s3") and prefix and not prefix.endswith("/"):
            problem = f"{uri}: a directory bucket (S3 Express) has folders only"
            yield error(key, problem, f'end it with a slash: "{uri}/"')
