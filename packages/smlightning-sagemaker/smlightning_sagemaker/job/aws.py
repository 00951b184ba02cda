"""boto3's session and clients, what botocore would not send, and the meaning of AWS's errors."""

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smlightning.errors import LESS_SHARED_MEMORY, MORE_MEMORY, UserError

TRANSIENT = (
    r"Throttl|TooManyRequests|RequestLimitExceeded|SlowDown"
    r"|ServiceUnavailable|Internal(Failure|Err)"
)

# Logs of all training jobs of a region. Streams: <job>/algo-<n>-<timestamp>, one for each host and
# attempt.
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
SIGN_IN = "sign in (aws sso login, aws configure; in Studio, restart the space)"
SETTINGS = "correct the AWS_ variables, or credential_process of ~/.aws/config, which prints JSON"
WRONG_TYPE = re.compile(r"(?s)Invalid type for parameter (\S+), (.*?valid types: [^\n]*)")

_profile = ""
_creating = threading.Lock()


def use_profile(name: str) -> None:
    """Sign in anew, with a profile of AWS's configuration, for all clients of a command.

    Args:
        name: as `aws configure list-profiles` prints it; empty: as AWS's own tools choose, by the
            environment.
    """
    global _profile
    _profile = name
    session.cache_clear()


@functools.cache
def session() -> Any:
    """The one boto3 session, which holds the credentials of all clients and renews them.

    AWS accepts a code of MFA once: with a session for each client the user would enter several.
    """
    import boto3

    return boto3.Session(profile_name=_profile or None)


def client(service: str, region: str, *, retries: int = 3, timeout_s: int = 20) -> Any:
    """A boto3 client; botocore's standard mode repeats calls after failures of network or AWS.

    Args:
        service: as boto3 names it.
        region: of the service.
        retries: further attempts of a call; the waits between them grow to 20 s.
        timeout_s: seconds of an attempt.
    """
    from botocore.config import Config

    config = Config(
        connect_timeout=min(5, timeout_s),
        read_timeout=timeout_s,
        retries={"max_attempts": retries, "mode": "standard"},
    )
    with _creating:  # threads may share clients, and no session
        try:
            return session().client(service, region_name=region, config=config)
        except ValueError as failure:  # botocore's own words for some wrong settings
            if isinstance(failure, failures()):
                raise
            raise UserError(f"AWS's settings cannot be used: {failure}", SETTINGS) from failure


@functools.cache
def model(service: str = "sagemaker") -> Any:
    """botocore's model of a service, which takes a moment to read."""
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


@functools.cache
def shape(name: str) -> Any:
    """A shape of botocore's model of SageMaker, with its limits."""
    return model().shape_for(name)


def reject(request: dict[str, Any]) -> None:
    """Reject a CreateTrainingJob that botocore would not send.

    Raises:
        UserError: with botocore's own sentences about wrong types and names.
    """
    from botocore.exceptions import ParamValidationError
    from botocore.validate import validate_parameters

    try:
        validate_parameters(request, shape("CreateTrainingJobRequest"))
    except ParamValidationError as failure:
        raise explain(failure) from None


def wrong_types(members: dict[str, Any]) -> list[tuple[str, str]]:
    """Members of CreateTrainingJob whose value has another type, with botocore's words."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(members, shape("CreateTrainingJobRequest"))
    return WRONG_TYPE.findall(report.generate_report())


@functools.cache
def partition(region: str) -> str:
    """`aws`, `aws-cn` or `aws-us-gov`; `aws` for a region that botocore does not know."""
    import botocore.session
    from botocore.exceptions import UnknownRegionError

    try:
        return str(botocore.session.get_session().get_partition_for_region(region))
    except UnknownRegionError:
        return "aws"


@functools.cache
def dns_suffix(region: str) -> str:
    """The domain of AWS's hosts in a region: `amazonaws.com`, another one in China."""
    import botocore.session

    name = partition(region)
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    return next(str(entry["dnsSuffix"]) for entry in partitions if entry["partition"] == name)


def console(region: str) -> str:
    """The address of SageMaker in the AWS console of a region."""
    hosts = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
    host = hosts.get(partition(region), "console.aws.amazon.com")
    return f"https://{region}.{host}/sagemaker/home?region={region}"


def s3_uri(text: str) -> bool:
    """Whether it is an address in S3, by AWS's own patterns (API_S3DataSource, S3Uri; the bucket's
    by botocore.handlers.VALID_BUCKET, or an access point's ARN).
    """
    return bool(re.fullmatch(r"s3://([\w.-]{1,255}|arn:[^/]+)(/.*)?", text, re.ASCII))


def s3_location(uri: str) -> tuple[str, str]:
    """Bucket, or the ARN of an access point, and key of an S3 address."""
    of_point = re.match(r"s3://(arn:[^/]*accesspoint/[^/]+)/?(.*)", uri)
    if of_point:
        return of_point[1], of_point[2]
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def within(inner: str, outer: str) -> bool:
    """Whether a folder in S3 lies in another, or is the same."""
    return f"{inner.rstrip('/')}/".startswith(f"{outer.rstrip('/')}/")


def all_objects(uri: str, s3: Any) -> Iterator[dict[str, Any]]:
    """Every object at an S3 address; of a folder all below it."""
    bucket, prefix = s3_location(uri)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        yield from page.get("Contents", [])


def code(problem: BaseException) -> str:
    """AWS's name for an error that it answered with; empty for one that arose on the way."""
    response = getattr(problem, "response", None) or {}  # None: the answer was lost
    return str(response.get("Error", {}).get("Code", ""))


def denied(problem: Exception) -> bool:
    return bool(re.search(r"AccessDenied|Unauthorized|^403$", code(problem)))


def missing(problem: Exception) -> bool:
    """Whether CloudWatch Logs has no such log group or stream."""
    return code(problem) == "ResourceNotFoundException"


def failures() -> tuple[type[Exception], ...]:
    """The errors that boto3 raises: on the way to AWS, AWS's own, and unreadable answers."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return (Boto3Error, BotoCoreError, ClientError, ResponseParserError)


@contextmanager
def errors(subject: str = "", instead: str = "") -> Iterator[None]:
    """Turn what boto3 raises into a UserError.

    Args:
        subject: begins the problem.
        instead: another hint.
    """
    try:
        yield
    except failures() as failure:
        known = explain(failure)
        problem = f"{subject}: {known.problem}" if subject else known.problem
        hints = [hint for hint in (known.hint, instead) if hint]
        raise UserError(problem, ", or ".join(hints)) from failure
    except EOFError as failure:
        if failure.args:  # of a file
            raise
        hint = "run the command in a terminal, or with credentials that need no code"
        raise UserError(
            "the profile needs an MFA code, and there is no terminal", hint
        ) from failure


# Pattern of AWS's message about a failed job or a rejected call → hint; the first match counts.
# The words about capacity are from
# https://repost.aws/knowledge-center/sagemaker-insufficient-capacity-error.
HINTS = {
    r"^\w*(Expired|UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|AuthFailure)": (
        f"check AWS_PROFILE, or {SIGN_IN}"
    ),
    r"^SignatureDoesNotMatch": f"check AWS_PROFILE, or {SIGN_IN}",
    r"MultiFactorAuthentication failed": "run the command again with the next MFA code",
    r"^\w*(AccessDenied|Unauthorized)|^403:": "ask for that permission",
    r"CapacityError|[Ii]nsufficient ?(Instance)?Capacity|requested ML compute capacity": (
        "no such instances are free in the zones of your subnets: send the job again later; or "
        "name several types in ResourceConfig.InstancePreferences of [request]; or add subnets of "
        "other zones, another region, or a training plan, which reserves capacity"
    ),
    r"ResourceLimitExceeded|service limit|account-level": (
        "the account's quota is used up: ask for more in the Service Quotas console, or stop jobs"
    ),
    r"(?i)out of memory|OutOfMemory|Cannot allocate memory|exit code:? (137|-9)\b": (
        f"memory did not suffice: {MORE_MEMORY}"
    ),
    r"(?i)bus error|shared memory|/dev/shm": (
        f"the container's /dev/shm was full: {LESS_SHARED_MEMORY}"
    ),
    r"^ResourceInUse": (
        "an earlier attempt may have sent it: look for it with smlightning list, before you send "
        "it again"
    ),
    r"^InternalServerError": (
        "it is a fault within AWS: send the job again. SageMaker does so itself if job.toml has "
        "MaximumRetryAttempts = 3 below [request.RetryStrategy]"
    ),
    rf"^\w*({TRANSIENT})": (
        "AWS is busy, or limits how often it is called: run the command again in a minute"
    ),
    r"log (group|stream) does not exist": (
        "the log was deleted, its retention is over, or no host has written to it"
    ),
}


CORRECT = "correct the value in this message"


def hint_of(reason: str) -> str:
    """The hint for a failure, by AWS's words for it; empty for unknown words."""
    return next((hint for words, hint in HINTS.items() if re.search(words, reason)), "")


def explain(failure: Exception) -> UserError:
    """The UserError for an error of boto3: its own sentence, with a hint."""
    from botocore import exceptions as e
    from botocore.parsers import ResponseParserError

    if isinstance(failure, e.ClientError):
        name, message = code(failure), failure.response["Error"].get("Message", "")
        problem = f"AWS rejects {failure.operation_name}: {(message or name).rstrip('.')} ({name})"
        return UserError(problem, hint_of(f"{name}: {message}") or CORRECT)
    hints: dict[type[Exception] | tuple[type[Exception], ...], str] = {
        ResponseParserError: "a proxy may have answered: check the network and the proxy",
        (e.HTTPClientError, e.ConnectionError): "check the network, the proxy, and the region",
        (e.NoCredentialsError, e.PartialCredentialsError): SIGN_IN,
        (e.SSOError, e.UnauthorizedSSOTokenError, e.TokenRetrievalError): SIGN_IN,
        e.ProfileNotFound: (
            "set --profile, profile in job.toml or AWS_PROFILE to one that "
            "aws configure list-profiles prints"
        ),
    }
    hint = next((hint for kinds, hint in hints.items() if isinstance(failure, kinds)), CORRECT)
    return UserError(" ".join(f"AWS: {failure}".split()).rstrip("."), hint)
