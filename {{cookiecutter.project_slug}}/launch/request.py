"""From a `Job` to SageMaker's CreateTrainingJob: the estimator, and the request it sends or would send."""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from launch import SRC, entry, profiles
from launch.job import Job
from options import METRICS
from runtime import report
from runtime.report import UserError

# In a dry run these stand for what only an account knows.
DRY_ACCOUNT = "000000000000"
DRY_ROLE = "placeholder-for-dry-run"

os.environ.setdefault("SAGEMAKER_SUPPRESS_V2_WARNING", "1")  # v2 is chosen knowingly: v3 has no estimator, no SMDDP
logging.getLogger("sagemaker.config").disabled = True  # it prints to standard output, already when imported


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
    """What the container hands to train.py, and the launcher's own flags."""
    return {**job.hyperparameters, **profiles.flags(job)}


def metric_definitions() -> list[dict[str, str]]:
    """CloudWatch metrics, read from the lines that `runtime/report.py` formats: one place, so they cannot drift."""
    return [{"Name": name, "Regex": report.metric_regex(name)} for name in METRICS]


def options(job: Job, bucket: str, name: str) -> dict[str, Any]:
    """The estimator's arguments beyond code, image and cluster: disk, time, stopping, network, environment."""
    where = job.checkpoint_s3
    return {
        "output_path": f"s3://{bucket}/",
        "code_location": f"s3://{bucket}",
        "volume_size": job.volume_gb,
        "max_run": job.max_run_s,
        "container_entry_point": entry.FORWARDING if job.forward_stop else None,
        "keep_alive_period_in_seconds": job.keep_alive_s or None,
        "use_spot_instances": job.spot.enabled,
        "max_wait": job.spot.max_wait_s if job.spot.enabled else None,
        "checkpoint_s3_uri": f"s3://{bucket}/{name}/checkpoints" if where == "auto" else where or None,
        "subnets": job.network.subnets or None,
        "security_group_ids": job.network.security_groups or None,
        "encrypt_inter_container_traffic": job.network.encrypt,
        "environment": job.environment or None,
        "tags": [{"Key": key, "Value": value} for key, value in job.tags.items()] or None,
        "debugger_hook_config": False,  # a hook in every step that nobody reads
        "disable_profiler": True,
    }


def estimator(job: Job, session: Any, role: str, bucket: str, name: str) -> Any:
    """The `sagemaker.pytorch.PyTorch` estimator of the job. `launch.ipynb` writes the same one out."""
    return sdk().pytorch.PyTorch(
        entry_point="train.py",
        source_dir=str(SRC),
        image_uri=image_uri(job),
        instance_type=job.instance_type,
        instance_count=job.instance_count,
        distribution=profiles.distribution(job),
        hyperparameters=hyperparameters(job),
        metric_definitions=metric_definitions(),
        role=role,
        sagemaker_session=session,
        **options(job, bucket, name),
    )


def sdk() -> Any:
    """The SDK, imported only when needed (about 2 s), and without its remarks."""
    import sagemaker
    import sagemaker.config
    import sagemaker.pytorch

    logging.getLogger("sagemaker").setLevel(logging.CRITICAL)
    return sagemaker


def sagemaker_session(job: Job) -> Any:
    """An SDK session in the job's region. Usage telemetry is off unless job.toml turns it on."""
    import boto3

    sagemaker = sdk()
    config = sagemaker.config.load_sagemaker_config()  # the user's own defaults stay
    config.setdefault("SchemaVersion", "1.0")
    modules = config.setdefault("SageMaker", {}).setdefault("PythonSDK", {}).setdefault("Modules", {})
    modules["TelemetryOptOut"] = not job.telemetry
    return sagemaker.Session(
        boto3.Session(region_name=job.region), sagemaker_config=config, default_bucket=job.bucket or None
    )


def execution_role(job: Job, session: Any) -> str:
    """The ARN of the role that the job runs under.

    Raises:
        UserError: `role` is empty and the credentials are not a role's, as they are in Studio.
    """
    if job.role:
        return session.expand_role(job.role)
    try:
        return sdk().get_execution_role(session)
    except ValueError as error:
        raise UserError(
            'role = "" means the role SageMaker Studio runs under, and there is none here; '
            "set role in job.toml to the ARN of a role that trusts sagemaker.amazonaws.com"
        ) from error


def submit(job: Job) -> str:
    """Upload `src/`, create the training job, and return its name without waiting for it."""
    session, name = sagemaker_session(job), job_name(job)
    role, bucket = execution_role(job, session), job.bucket or session.default_bucket()
    estimator(job, session, role, bucket, name).fit(job.channels or None, wait=False, job_name=name)
    return name


def dry_run(job: Job) -> dict[str, Any]:
    """The CreateTrainingJob request, built by the SDK and validated by botocore. Nothing leaves this machine.

    Account, and the role where job.toml names none, are placeholders; no credentials are asked for.

    Raises:
        UserError: botocore's model does not take the request.
    """
    import boto3
    from botocore.awsrequest import AWSResponse
    from botocore.validate import ParamValidator

    def hold(request: Any, event_name: str, **_: Any) -> AWSResponse:  # the last stop before the network
        if ".s3." not in event_name:
            raise RuntimeError(f"a dry run sends nothing, and {event_name} was about to")
        return AWSResponse(request.url, 200, {}, _Body())

    boto_session = boto3.Session("dry-run", "dry-run", region_name=job.region)
    boto_session.events.register("before-send", hold)
    role = job.role if job.role.startswith("arn:") else f"arn:aws:iam::{DRY_ACCOUNT}:role/{job.role or DRY_ROLE}"
    name, bucket = job_name(job), job.bucket or f"sagemaker-{job.region}-{role.split(':')[4]}"
    session = sdk().Session(boto_session, default_bucket=bucket)
    made = estimator(job, session, role, bucket, name)
    made._prepare_for_training(name)  # these three calls are what fit() does before it sends, without telemetry
    arguments = sdk().estimator._TrainingJob.get_train_args(made, job.channels or None, None)
    request: dict[str, Any] = session.get_train_request(**arguments)
    shape = session.sagemaker_client.meta.service_model.operation_model("CreateTrainingJob").input_shape
    validation = ParamValidator().validate(request, shape)
    if validation.has_errors():
        raise UserError(f"AWS would not take this request: {validation.generate_report()}")
    return request


class _Body(io.BytesIO):
    """An empty HTTP body with the one method of urllib3's that botocore calls."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


@contextmanager
def aws_errors() -> Iterator[None]:
    """Turn what boto3 raises into one sentence with its cure."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise UserError(explain(error)) from error


@contextmanager
def kindly() -> Iterator[None]:
    """For a notebook's cell: a mistake's sentence in place of its stack trace, and the notebook goes on."""
    try:
        with aws_errors():
            yield
    except UserError as error:
        print(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted")


def explain(error: Exception) -> str:
    """What an AWS error means and what to do about it, in one sentence."""
    from botocore import exceptions as e

    if isinstance(error, e.ClientError):
        code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if "Expired" in code:
            return "AWS credentials have expired; get new ones (aws sso login, or your organisation's way)"
        if code in (
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "SignatureDoesNotMatch",
            "InvalidAccessKeyId",
            "AuthFailure",
        ):
            return f"AWS does not know these credentials ({code}); check aws sts get-caller-identity and AWS_PROFILE"
        if "AccessDenied" in code or "Unauthorized" in code or code == "403":
            return f"these credentials may not call {error.operation_name}; ask for that permission ({message})"
        return f"AWS refused {error.operation_name}: {message or code}"
    if isinstance(error, e.NoCredentialsError | e.PartialCredentialsError):
        return "there are no AWS credentials here; run aws configure or aws sso login (submit --dry-run needs none)"
    if isinstance(error, e.ProfileNotFound | e.SSOError | e.UnauthorizedSSOTokenError | e.TokenRetrievalError):
        return f"the AWS profile cannot be used ({error}); check AWS_PROFILE, or run aws sso login"
    if isinstance(error, e.HTTPClientError | e.ConnectionError):
        return (
            f"AWS cannot be reached ({type(error).__name__}); check the network, the proxy, and the region in job.toml"
        )
    return " ".join(f"AWS: {error}".split())
