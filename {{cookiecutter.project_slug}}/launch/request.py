"""From a `Job` to SageMaker's CreateTrainingJob: the estimator, and the request it sends or would send."""

import inspect
import io
import logging
import os
from datetime import UTC, datetime
from typing import Any

from launch import SRC, aws, profiles, v3
from launch.job import MEMBERS, OWN_KEYS, Job
from options import METRICS
from runtime import hub, imports, report
from runtime.report import UserError

# In a dry run these stand for what only an account knows.
DRY_ACCOUNT = "000000000000"
DRY_ROLE = "placeholder-for-dry-run"

ROLE_PATH = "SageMaker.TrainingJob.RoleArn"  # in the SDK's configuration file
BUCKET_PATH = "SageMaker.PythonSDK.Modules.Session.DefaultS3Bucket"
# Parameters that take the SDK's own objects, or would fetch and run code from elsewhere.
NOT_TAKEN = {"self", "args", "kwargs", "git_config", "training_recipe", "recipe_overrides", "compiler_config", "rules"}

os.environ.setdefault("SAGEMAKER_SUPPRESS_V2_WARNING", "1")  # v2 is chosen knowingly: v3 has no estimator, no SMDDP
logging.getLogger("sagemaker.config").disabled = True  # it prints to standard output, already when imported
logging.getLogger("botocore.credentials").setLevel(logging.WARNING)  # or each client tells where it found them


def job_name(job: Job) -> str:
    """A name of its own for each launch: at most 63 characters when `name` has at most 47."""
    return f"{job.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def image_uri(job: Job) -> str:
    """The image's address in the job's region, from the accounts that the SDK's table lists."""
    family = profiles.profile(job)
    if family is None:
        return job.image
    any_will_do = {"version": "2.8.0", "py_version": "py312", "instance_type": "ml.g5.xlarge"}
    uri = sdk().image_uris.retrieve("pytorch", job.region, image_scope="training", **any_will_do)
    registry = uri.split("/")[0]  # the same for all images of a region
    return f"{registry}/{family.gpu if profiles.gpus(job.instance_type) != 0 else family.cpu}"


def hyperparameters(job: Job) -> dict[str, Any]:
    """What the container hands to train.py, and the flags by which its toolkit knows the launcher."""
    return {**job.hyperparameters, **profiles.flags(job)}


def metric_definitions() -> list[dict[str, str]]:
    """CloudWatch metrics, read from the lines that `runtime/report.py` formats: one place, so they cannot drift."""
    return [{"Name": name, "Regex": report.metric_regex(name)} for name in METRICS]


def environment(job: Job) -> dict[str, str]:
    """Variables of the container: [environment], and what keys of job.toml tell train.py."""
    own = {hub.SECRET: job.hub_token_secret, "MLFLOW_TRACKING_URI": job.mlflow}
    named = {"MLFLOW_EXPERIMENT_NAME": job.name} if job.mlflow else {}
    return {**named, **job.environment, **{name: value for name, value in own.items() if value}}


def options(job: Job, bucket: str, name: str) -> dict[str, Any]:
    """The estimator's arguments beyond code, image and cluster: disk, time, stopping, network; [estimator] is last."""
    output = str(job.estimator.get("output_path", f"s3://{bucket}/"))
    auto = f"{output.rstrip('/')}/{name}/checkpoints"
    return {
        "output_path": output,
        "code_location": output.rstrip("/"),
        "volume_size": job.volume_gb,
        "max_run": job.max_run_s,
        "container_entry_point": profiles.FORWARDING if job.forward_stop else None,
        "keep_alive_period_in_seconds": job.keep_alive_s or None,
        "use_spot_instances": job.spot.enabled,
        "max_wait": job.spot.max_wait_s if job.spot.enabled else None,
        "checkpoint_s3_uri": auto if job.checkpoint_s3 == "auto" else job.checkpoint_s3 or None,
        "subnets": job.network.subnets or None,
        "security_group_ids": job.network.security_groups or None,
        "encrypt_inter_container_traffic": job.network.encrypt or None,  # None: as the SDK's configuration file says
        "environment": environment(job) or None,
        "tags": [{"Key": key, "Value": value} for key, value in job.tags.items()] or None,
        "debugger_hook_config": False,  # a hook in every step that nobody reads
        "disable_profiler": True,
        **job.estimator,
    }


def parameters() -> list[str]:
    """What [estimator] may hold: the parameters of the SDK's estimator that job.toml has no key of its own for."""
    if v3.installed():
        return sorted({*MEMBERS, "code_location"} - OWN_KEYS.keys())
    classes = sdk().pytorch.PyTorch.__mro__
    names = {name for cls in classes for name in inspect.signature(cls.__init__).parameters}
    return sorted(names - NOT_TAKEN - OWN_KEYS.keys())


def channels(job: Job) -> dict[str, Any] | None:
    """What `fit` takes as inputs: an S3 address, or a table as the SDK's TrainingInput or FileSystemInput."""
    made = {key: each if isinstance(each, str) else channel_class(each)(**each) for key, each in job.channels.items()}
    return made or None


def channel_class(table: dict[str, Any]) -> type:
    """The SDK's class for a channel that is a table: a file system (FSx, EFS), or S3 with its options."""
    inputs = sdk().inputs
    return inputs.FileSystemInput if "file_system_id" in table else inputs.TrainingInput


def estimator(job: Job, session: Any, role: str, bucket: str, name: str) -> Any:
    """The `sagemaker.pytorch.PyTorch` estimator of the job. `launch.ipynb` writes the same one out."""
    return sdk().pytorch.PyTorch(
        entry_point="train.py",
        source_dir=str(SRC),
        image_uri=image_uri(job),
        instance_type=job.instance_type,
        instance_count=job.instance_count,
        hyperparameters=hyperparameters(job),
        metric_definitions=metric_definitions(),
        role=role,
        sagemaker_session=session,
        **options(job, bucket, name),
    )


def sdk() -> Any:
    """The SDK, imported only when needed (about 1 s), and without its remarks; v3 by v2's names."""
    with imports.uncollected():
        if v3.installed():
            return v3.sdk()
        import sagemaker
        import sagemaker.config
        import sagemaker.inputs
        import sagemaker.pytorch
        import sagemaker.tuner

    logging.getLogger("sagemaker").setLevel(logging.CRITICAL)
    return sagemaker


def sagemaker_session(job: Job) -> Any:
    """An SDK session in the job's region. Usage telemetry is off unless job.toml turns it on."""
    import boto3

    config = sdk().config.load_sagemaker_config()  # the user's and the organisation's own defaults stay
    config.setdefault("SchemaVersion", "1.0")
    modules = config.setdefault("SageMaker", {}).setdefault("PythonSDK", {}).setdefault("Modules", {})
    modules["TelemetryOptOut"] = not job.telemetry
    boto_session = boto3.Session(region_name=job.region)
    return sdk().Session(boto_session, sagemaker_config=config, default_bucket=job.bucket or None)


def execution_role(job: Job, session: Any) -> str:
    """The ARN of the role that the job runs under.

    Raises:
        UserError: none is named, and the credentials are not a role's, as they are in Studio.
    """
    if named := job.role or sdk().utils.get_config_value(ROLE_PATH, session.sagemaker_config):
        return str(session.expand_role(named))
    try:
        return str(sdk().get_execution_role(session))
    except ValueError as error:
        raise UserError(
            'role = "" means the role SageMaker Studio runs under, and there is none here; '
            "set role in job.toml to the ARN of a role that trusts sagemaker.amazonaws.com"
        ) from error


def submit(job: Job, build: Any = estimator, name: str = "") -> str:
    """Upload `src/`, create the job of what `build` makes, and return its name without waiting for it."""
    session, name = sagemaker_session(job), name or job_name(job)
    role, bucket = execution_role(job, session), job.bucket or session.default_bucket()
    build(job, session, role, bucket, name).fit(channels(job), wait=False, job_name=name)
    return name


def training_request(job: Job, session: Any, role: str, bucket: str, name: str) -> dict[str, Any]:
    """CreateTrainingJob, by what the estimator's fit() does before it sends, without telemetry."""
    made = estimator(job, session, role, bucket, name)
    if v3.installed():
        return dict(made.request(channels(job), name))
    made._prepare_for_training(name)
    return dict(session.get_train_request(**sdk().estimator._TrainingJob.get_train_args(made, channels(job), None)))


def dry_run(job: Job, build: Any = training_request, name: str = "") -> dict[str, Any]:
    """The CreateTrainingJob request, built by the SDK with its configuration file. Nothing leaves this machine.

    Account, and the role where none is named, are placeholders; no credentials are asked for. Preflight judges this
    request and a rehearsal plays it; `submit` sends the same one.

    Raises:
        UserError: the SDK cannot build a request of this job.
    """
    import boto3
    from botocore.awsrequest import AWSResponse
    from urllib3 import HTTPResponse

    def hold(request: Any, event_name: str, **_: Any) -> AWSResponse:  # the last stop before the network
        if ".s3." not in event_name:
            raise RuntimeError(f"a dry run sends nothing, and {event_name} was about to")
        return AWSResponse(request.url, 200, {}, HTTPResponse(io.BytesIO(), preload_content=False))

    sdk()  # where none is installed, ModuleNotFoundError says so
    try:
        boto_session = boto3.Session("dry-run", "dry-run", region_name=job.region)
        boto_session.events.register("before-send", hold)
        config, configured = sdk().config.load_sagemaker_config(), sdk().utils.get_config_value
        role, bucket = job.role or configured(ROLE_PATH, config) or "", job.bucket or configured(BUCKET_PATH, config)
        if not role.startswith("arn:"):
            role = f"arn:{aws.partition(job.region)}:iam::{DRY_ACCOUNT}:role/{role or DRY_ROLE}"
        name, bucket = name or job_name(job), bucket or f"sagemaker-{job.region}-{[*role.split(':'), '', ''][4]}"
        session = sdk().Session(boto_session, sagemaker_config=config, default_bucket=bucket)
        return dict(build(job, session, role, bucket, name))
    except Exception as error:  # the SDK raises whatever it comes across in values of [estimator] and [channels]
        said = f"{type(error).__name__}: {report.root_cause(error)}"
        raise UserError(f"the SageMaker SDK cannot build a request of this job ({said}); correct that value") from error
