"""boto3's session and clients, what botocore would not send, and the meaning of AWS's errors."""

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from smlightning.errors import UserError
from smlightning_sagemaker.findings import error_lines

REJECTED_KEYS = {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "AuthFailure",
}
TRANSIENT = re.compile(
    r"Throttl|TooManyRequests|RequestLimitExceeded|SlowDown"
    r"|ServiceUnavailable|Internal(Failure|Err)"
)

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 60.0  # before a failed call is repeated
SIGN_IN = "sign in (aws sso login, aws configure; in Studio, restart the space)"
WRONG_TYPE = re.compile(r"(?s)Invalid type for parameter (\S+), (.*?valid types: [^\n]*)")

_profile = ""
_profile_key = ""  # what names it
_creating = threading.Lock()


def use_profile(name: str, key: str = "profile in job.toml") -> None:
    """Sign in anew, with a profile of AWS's configuration, for all clients of a command.

    Args:
        name: as `aws configure list-profiles` prints it; empty: as AWS's own tools choose, by the
            environment.
        key: what names it, for the sentence about one that does not exist.
    """
    global _profile, _profile_key
    _profile, _profile_key = name, key
    session.cache_clear()


@functools.cache
def session() -> Any:
    """The one boto3 session, which holds the credentials of all clients and renews them.

    AWS accepts a code of MFA once: with a session for each client the user would enter several.
    """
    import boto3

    return boto3.Session(profile_name=_profile or None)


def signed_in() -> bool:
    """Whether there are credentials; this asks for a code of MFA where the profile needs one."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        credentials = session().get_credentials()
        return bool(credentials and credentials.get_frozen_credentials())
    except (BotoCoreError, ClientError, EOFError, RuntimeError):  # or nobody can type the code
        return False


def client(service: str, region: str, *, patience_s: float = 0.0) -> Any:
    """A boto3 client that gives up in seconds, not minutes.

    Args:
        service: as boto3 names it.
        region: of the service.
        patience_s: seconds for the only attempt; 0: four attempts of the usual length.
    """
    from botocore.config import Config

    patience = Config(
        connect_timeout=patience_s or 5,
        read_timeout=patience_s or 20,
        retries={"max_attempts": 0 if patience_s else 3, "mode": "standard"},
    )
    with _creating:  # threads may share clients, and no session
        return session().client(service, region_name=region, config=patience)


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
    """Bucket and key of an S3 address."""
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


def code(problem: Exception) -> str:
    """AWS's name for an error that it answered with; empty for one that arose on the way."""
    return str(getattr(problem, "response", {}).get("Error", {}).get("Code", ""))


def denied(problem: Exception) -> bool:
    return bool(re.search(r"AccessDenied|Unauthorized|^403$", code(problem)))


def missing(problem: Exception) -> bool:
    """Whether CloudWatch Logs has no such log group or stream."""
    return code(problem) == "ResourceNotFoundException"


def transient(problem: Exception) -> bool:
    """Whether asking again later may succeed: no network, throttled, or a failure inside AWS."""
    from botocore import exceptions as e

    if isinstance(problem, e.HTTPClientError | e.ConnectionError):
        return True
    return bool(TRANSIENT.search(code(problem)))


def answer(call: Callable[[], Any], say: Callable[[str], None] = print) -> Any:
    """The result of a call of AWS. While the network or AWS fails, the call is repeated.

    Args:
        call: calls AWS.
        say: prints the first failure.
    """
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return call()
        except Exception as problem:
            if not transient(problem):
                raise
            if wait_s == FIRST_WAIT_S:
                say(f"{explain(problem)}; retrying until AWS answers")
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def failures() -> tuple[type[Exception], ...]:
    """What boto3 raises: errors on the way to AWS, AWS's own, and unreadable answers."""
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


@contextmanager
def print_user_errors() -> Iterator[None]:
    """Print a user's mistake in a notebook's cell as one sentence, without a stack trace."""
    try:
        with errors():
            yield
    except UserError as failure:
        print(*error_lines(failure), sep="\n")
    except KeyboardInterrupt:
        print("interrupted")


# Pattern of AWS's message about a failed job or a rejected call → hint; the first match counts.
# The words about capacity are from
# https://repost.aws/knowledge-center/sagemaker-insufficient-capacity-error.
HINTS = {
    r"CapacityError|[Ii]nsufficient ?(Instance)?Capacity|requested ML compute capacity": (
        "no such instances are free in the zones of your subnets: send the job again later; or "
        "name several types in ResourceConfig.InstancePreferences of [request]; or add subnets of "
        "other zones, another region, or a training plan, which reserves capacity"
    ),
    r"ResourceLimitExceeded|service limit|account-level": (
        "the account's quota is used up: ask for more in the Service Quotas console, or stop jobs"
    ),
    r"(?i)out of memory|OutOfMemory|Cannot allocate memory|exit code:? (137|-9)\b": (
        "memory did not suffice: lower batch_size and raise accumulate_grad_batches, which keeps "
        "the global batch; or take instances with more memory"
    ),
    r"(?i)bus error|shared memory|/dev/shm": (
        "the container's /dev/shm was full, and SageMaker has no setting for it: lower "
        "num_workers or prefetching, or pass less through the loader's workers"
    ),
    r"^InternalServerError": (
        "it is a fault within AWS: send the job again. SageMaker does so itself if job.toml has "
        "MaximumRetryAttempts = 3 below [request.RetryStrategy]"
    ),
    rf"^\w*({TRANSIENT.pattern})": (
        "AWS is busy, or limits how often it is called: run the command again in a minute"
    ),
    r"log (group|stream) does not exist": (
        "the log was deleted, its retention is over, or no host has written to it"
    ),
}


def hint_of(reason: str) -> str:
    """The hint for a failure, by AWS's words for it; empty for unknown words."""
    return next((hint for words, hint in HINTS.items() if re.search(words, reason)), "")


CORRECT = "correct the value in this message"


def explain(failure: Exception) -> UserError:
    """The UserError for an error of boto3."""
    from botocore import exceptions as e
    from botocore.parsers import ResponseParserError

    if isinstance(failure, e.ClientError):
        return _client_error(failure)
    if isinstance(failure, ResponseParserError):
        problem = "the answer to a call of AWS is not AWS's: a proxy may have answered"
        return UserError(problem, "check the network and the proxy")
    if isinstance(failure, e.NoCredentialsError | e.PartialCredentialsError):
        return UserError("there are no AWS credentials here", SIGN_IN)
    if isinstance(failure, e.ProfileNotFound):
        key = _profile_key if _profile else "AWS_PROFILE"
        hint = f"set {key} to one that aws configure list-profiles prints"
        return UserError(str(failure).replace("The", "the", 1), hint)
    if isinstance(failure, e.SSOError | e.UnauthorizedSSOTokenError | e.TokenRetrievalError):
        return UserError(f"the single sign-on session cannot be used ({failure})", SIGN_IN)
    if isinstance(failure, e.HTTPClientError | e.ConnectionError):
        host = urlsplit(str(failure.kwargs.get("endpoint_url"))).netloc or "AWS"
        problem = f"{host} cannot be reached ({type(failure).__name__})"
        return UserError(problem, "check the network, the proxy, and the region")
    return UserError(" ".join(f"AWS: {failure}".split()), CORRECT)


def _client_error(failure: Any) -> UserError:
    """The UserError for an error that AWS answered."""
    name, message = code(failure), failure.response["Error"].get("Message", "")
    operation = failure.operation_name
    if "Expired" in name:
        return UserError("AWS credentials have expired", SIGN_IN)
    if name in REJECTED_KEYS:
        hint = f"check AWS_PROFILE, or {SIGN_IN}"
        return UserError(f"AWS does not know these credentials ({name})", hint)
    if "MultiFactorAuthentication failed" in message:
        return UserError("AWS rejects the MFA code", "run the command again with the next code")
    if denied(failure):
        hint = f"ask for that permission ({message})"
        return UserError(f"these credentials may not call {operation}", hint)
    reason = (message or name).rstrip(".")
    hint = hint_of(f"{name}: {message}") or CORRECT
    return UserError(f"AWS rejects {operation}: {reason}", hint)
