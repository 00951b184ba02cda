"""The SageMaker SDK's configuration file: an organisation's defaults, merged into a request.

Read and merged as SDK v2.257.7 does (sagemaker/config/config.py, and Session.get_train_request),
so that a job that boto3 sends is the one that the SDK's estimator would send in that place. Left
out of it: keys of other modules than the ones below, `DebugHookConfig` (a job of this project has
no hook), `TelemetryOptOut` (nothing is reported here), the checks of patterns by the SDK's schema
(AWS's own model checks the request), and the tags of a SageMaker Studio project.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, instances, resources
from smlightning.launch.findings import cure_for_unknown_name

FILE = "config.yaml"
OVERRIDES = ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "SAGEMAKER_USER_CONFIG_OVERRIDE")
# Keys of SageMaker.TrainingJob in the SDK's schema; a table where the schema names its only keys.
TRAINING_JOB: dict[str, tuple[str, ...]] = {
    "RoleArn": (),
    "VpcConfig": ("Subnets", "SecurityGroupIds"),
    "OutputDataConfig": ("KmsKeyId",),
    "ResourceConfig": ("VolumeKmsKeyId",),
    "ProfilerConfig": ("DisableProfiler",),
    "EnableInterContainerTrafficEncryption": (),
    "EnableNetworkIsolation": (),
    "Environment": (),
    "Tags": (),
}


@dataclass(frozen=True)
class Configuration:
    """What the files say of training jobs.

    Attributes:
        members: of CreateTrainingJob, by AWS's names.
        bucket: where code and models go; empty: SageMaker's default.
        prefix: folder in that bucket; empty: none.
    """

    members: dict[str, Any]
    bucket: str = ""
    prefix: str = ""

    @property
    def role(self) -> str:
        return str(self.members.get("RoleArn", ""))


def load(region: str) -> Configuration:
    """The administrator's file, and over it the user's; one that is not there is passed over.

    Args:
        region: in which a file on S3 (a variable that begins with s3://) is asked for.

    Raises:
        UserError: a file that a variable names is not there, or a file is no configuration.
    """
    merged: dict[str, Any] = {}
    for place, chosen in _places():
        content = _content(place, chosen, region)
        if content:
            merged = merge(merged, content)
    return _configuration(merged)


def _places() -> list[tuple[str, bool]]:
    """Each file's place, and whether a variable chose it: then it has to be there."""
    from platformdirs import site_config_dir, user_config_dir

    folders = (site_config_dir("sagemaker"), user_config_dir("sagemaker"))
    places = []
    for variable, folder in zip(OVERRIDES, folders, strict=True):
        usual = str(Path(folder) / FILE)
        place = os.environ.get(variable, usual)
        places.append((place, place != usual))
    return places


def _content(place: str, chosen: bool, region: str) -> dict[str, Any]:
    import yaml

    if place.startswith("s3://"):
        text = _from_s3(place, region)
    else:
        path = Path(place)
        if path.is_dir():
            path = path / FILE
        if not path.exists() and not chosen:
            return {}
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            reason = getattr(failure, "strerror", None) or "it is not UTF-8 text"
            raise _unusable(place, f"cannot be read ({reason})") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise _unusable(place, f"is not YAML ({' '.join(str(failure).split())})") from None
    if content and not isinstance(content, dict):
        raise _unusable(place, "is no table of keys")
    return content or {}


def _unusable(place: str, problem: str) -> UserError:
    cure = f"correct it, or the variable {' or '.join(OVERRIDES)} that names it"
    return UserError(f"the SageMaker SDK's configuration file {place} {problem}", cure)


def _from_s3(uri: str, region: str) -> str:
    """A file on S3, or `config.yaml` in a folder there."""
    with aws.errors(f"the SageMaker SDK's configuration file {uri} cannot be read"):
        s3 = aws.client("s3", region)
        bucket, key = aws.s3_location(uri)
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", [])
        names = [item["Key"] for item in listed]
        if len(names) > 1:  # a folder
            key = str(PurePosixPath(key, FILE))
        if key not in names:
            raise _unusable(uri, "does not exist")
        content: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise _unusable(uri, "cannot be read (it is not UTF-8 text)") from None


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A new table with the values of both; of two values `above`'s counts, and tables merge."""
    merged = dict(below)
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = value
    return merged


def _configuration(merged: dict[str, Any]) -> Configuration:
    sagemaker = _table(merged, "SageMaker")
    modules = _table(_table(sagemaker, "PythonSDK"), "Modules")
    session = _table(modules, "Session")
    training = _table(sagemaker, "TrainingJob")
    for name, value in training.items():
        if name not in TRAINING_JOB:
            raise _wrong(
                f"TrainingJob.{name} is no key of it",
                cure_for_unknown_name(str(name), TRAINING_JOB),
            )
        known = TRAINING_JOB[name]
        for inner in _table(training, name) if known else ():
            if inner not in known:
                cure = cure_for_unknown_name(str(inner), known)
                raise _wrong(f"TrainingJob.{name}.{inner} is no key of it", cure)
        if name == "Tags" and not _are_tags(value):
            raise _wrong("TrainingJob.Tags is no list of tables with Key and Value", "correct it")
    _table(training, "Environment")
    return Configuration(
        members=training,
        bucket=str(session.get("DefaultS3Bucket") or ""),
        prefix=str(session.get("DefaultS3ObjectKeyPrefix") or "").strip("/"),
    )


def _wrong(problem: str, cure: str) -> UserError:
    return UserError(f"in the SageMaker SDK's configuration file {problem}", cure)


def _table(above: dict[str, Any], name: str) -> dict[str, Any]:
    value = above.get(name)
    if value is not None and not isinstance(value, dict):
        raise _wrong(f"{name} is no table", "correct it")
    return value or {}


def _are_tags(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(tag, dict) and {"Key", "Value"} <= tag.keys() for tag in value
    )


def complete(request: dict[str, Any], configuration: Configuration) -> dict[str, Any]:
    """The request, with the configuration's value for each member that it does not set itself."""
    defaults = dict(configuration.members)
    if "Environment" in request:
        defaults.pop("Environment", None)  # the SDK replaces it as a whole
    tags = _tags(request.get("Tags", []), defaults.pop("Tags", []))
    if not _takes_volume_key(request["ResourceConfig"]):
        defaults.pop("ResourceConfig", None)  # which holds the disk's key alone
    completed = merge(defaults, request)
    return {**completed, "Tags": tags} if tags else completed


def _tags(given: list[dict[str, str]], defaults: list[dict[str, str]]) -> list[dict[str, str]]:
    """The request's tags, and the configuration's with other keys."""
    taken = {tag["Key"] for tag in given}
    return [*given, *(tag for tag in defaults if tag["Key"] not in taken)]


def _takes_volume_key(config: dict[str, Any]) -> bool:
    """Whether some instances have disks of EBS; AWS refuses a key for those with NVMe disks."""
    return any(not instances.nvme(kind) for kind in resources.types_of(config))
