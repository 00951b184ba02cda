"""Version 3 of the SageMaker SDK in the place of version 2, where it is what is installed (`make sdk-v3`).

v3 has no estimator and no launcher for SMDDP, and its driver for mpirun starts too few ranks. So v2's request is made
here (the template's tests compare them) and v3's `TrainingJob` sends it: the image's own toolkit starts train.py.
"""

import copy
import logging
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launch import aws, profiles
from launch.job import MEMBERS


def installed() -> bool:
    """Whether the SDK here is v3: `sagemaker.core` is a part of it, and not of v2. Imports neither."""
    found = find_spec("sagemaker")
    return any((Path(folder) / "core").is_dir() for folder in (found and found.submodule_search_locations) or ())


def sdk() -> Any:
    """v3's modules by the names that v2 has for them, and `PyTorch` below in the estimator's place."""
    from sagemaker.core import common_utils, config, image_uris, inputs
    from sagemaker.core.helper import session_helper as helper

    logging.getLogger("sagemaker").setLevel(logging.CRITICAL)
    sessions = {"Session": helper.Session, "get_execution_role": helper.get_execution_role}
    modules = {"config": config, "image_uris": image_uris, "inputs": inputs, "utils": common_utils}
    return SimpleNamespace(pytorch=SimpleNamespace(PyTorch=PyTorch), **modules, **sessions)


class PyTorch:
    """A training job, from the arguments of v2's estimator. Those that `MEMBERS` does not know have no effect."""

    def __init__(self, *, entry_point: str, source_dir: str, sagemaker_session: Any, **given: Any) -> None:
        self.entry_point, self.source_dir, self.session, self.given = entry_point, source_dir, sagemaker_session, given

    def request(self, channels: dict[str, Any] | None, name: str) -> dict[str, Any]:
        """CreateTrainingJob, completed by what the SDK's configuration file holds under SageMaker.TrainingJob."""
        from sagemaker.core import common_utils, inputs

        made: dict[str, Any] = {"TrainingJobName": name, "AlgorithmSpecification": {"TrainingInputMode": "File"}}
        for parameter, path in MEMBERS.items():
            *structure, member = path.split(".")
            if self.given.get(parameter) is not None:
                (made.setdefault(structure[0], {}) if structure else made)[member] = self.given[parameter]
        defaults = copy.deepcopy(self.session.sagemaker_config.get("SageMaker", {}).get("TrainingJob", {}))
        channels, code = dict(channels or {}), self.archive(name)
        if made.get("EnableNetworkIsolation", defaults.get("EnableNetworkIsolation")):  # it cannot download its code
            channels["code"], code = code, "/opt/ml/input/data/code/sourcedir.tar.gz"
        for channel, source in channels.items():
            source = inputs.TrainingInput(source) if isinstance(source, str) else source
            made.setdefault("InputDataConfig", []).append({**source.config, "ChannelName": channel})
        options, region = self.given["hyperparameters"], self.session.boto_region_name
        made["HyperParameters"] = profiles.encoded(options, name, region, code)
        tagged = {tag["Key"] for tag in made.get("Tags", [])}
        if more := [tag for tag in defaults.pop("Tags", []) if tag["Key"] not in tagged]:
            made["Tags"] = made.get("Tags", []) + more
        if "Environment" in made:
            defaults.pop("Environment", None)  # given, it replaces the file's
        if not common_utils.instance_supports_kms(made["ResourceConfig"]["InstanceType"]):
            defaults.get("ResourceConfig", {}).pop("VolumeKmsKeyId", None)  # AWS refuses it for instances with NVMe
        common_utils.merge_dicts(defaults, made)
        return {key: value for key, value in defaults.items() if value not in (False, {})}

    def archive(self, name: str) -> str:
        """Where src/ is uploaded to."""
        return f"{self.given['code_location'].rstrip('/')}/{name}/source/sourcedir.tar.gz"

    def fit(self, channels: dict[str, Any] | None, *, wait: bool = False, job_name: str) -> None:
        """Upload the code and create the job. Nothing is waited for, whatever `wait` says: launch/follow.py follows."""
        from sagemaker.core.fw_utils import tar_and_upload_dir
        from sagemaker.core.resources import TrainingJob
        from sagemaker.core.utils.code_injection.codec import transform

        made, session = self.request(channels, job_name), self.session
        bucket, code = aws.s3_location(self.archive(job_name))
        output = made["OutputDataConfig"]
        key = output.get("KmsKeyId") if aws.s3_location(output["S3OutputPath"])[0] == bucket else None
        source = (bucket, code.rpartition("/")[0], self.entry_point, self.source_dir)
        tar_and_upload_dir(session.boto_session, *source, kms_key=key, s3_resource=session.s3_resource)
        members = transform(made, "CreateTrainingJobRequest")
        TrainingJob.create(session=session.boto_session, region=session.boto_region_name, **members)
