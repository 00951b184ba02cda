"""boto3 clients, what AWS's model of the API refuses, and what its errors mean."""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from smlightning.errors import UserError
from smlightning.launch.findings import cure_for_unknown_name, error_lines

REFUSED_KEYS = {
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

WRONG_TYPE = "correct its type"
TYPES = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "list": list,
    "map": dict,
    "structure": dict,
}


def client(service: str, region: str) -> Any:
    """A boto3 client that gives up in seconds, not minutes.

    Each has a session for itself, since threads may not share one.
    """
    import boto3
    from botocore.config import Config

    patience = Config(
        connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"}
    )
    return boto3.Session(region_name=region).client(service, config=patience)


@functools.cache
def shape(name: str) -> Any:
    """A shape of botocore's model of SageMaker, with its limits."""
    import botocore.session

    return botocore.session.get_session().get_service_model("sagemaker").shape_for(name)


class Violation(NamedTuple):
    """What of a request AWS's model refuses."""

    path: str  # within the request, as in ResourceConfig.InstanceType
    problem: str
    cure: str


def wrong_types(value: Any, model: Any) -> list[Violation]:
    """Where a value is of another type than its shape says: nothing can be read below it."""
    return [violation for violation in violations(value, model) if violation.cure == WRONG_TYPE]


def violations(value: Any, model: Any, path: str = "") -> Iterator[Violation]:
    """What of `value` is beyond a botocore shape.

    botocore's own ParamValidator looks at types, members, lengths and ranges; the patterns and the
    enumerations of the same model are looked at here alone.
    """
    expected = TYPES.get(model.type_name)
    if expected and not _is_a(value, expected):
        yield Violation(path, f"{_shown(value)} is not a {model.type_name}", WRONG_TYPE)
        return
    yield from _size(value, model, path)
    if isinstance(value, str):
        yield from _text(value, model, path)
    elif model.type_name == "map":
        for key, item in value.items():
            inner = f"{path}.{str(key)[:40]}"
            yield from violations(key, model.key, inner)
            yield from violations(item, model.value, inner)
    elif model.type_name == "list":
        for item in value:
            name = _name(item)
            yield from violations(item, model.member, f"{path}.{name}" if name else path)
    elif model.type_name == "structure":
        yield from _members(value, model, path)


def _is_a(value: Any, expected: type) -> bool:
    return isinstance(value, expected) and isinstance(value, bool) == (expected is bool)


def _shown(value: Any) -> str:
    try:
        return repr(str(value)[:80])
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def _name(item: Any) -> str:
    """What a member of a list is called, where it says so."""
    if not isinstance(item, dict):
        return ""
    return next((str(item[key])[:40] for key in ("Name", "Key", "ChannelName") if key in item), "")


def _size(value: Any, model: Any, path: str) -> Iterator[Violation]:
    """Numbers, lengths and counts within the model's limits."""
    most, least = model.metadata.get("max"), model.metadata.get("min")
    if isinstance(value, int):
        size, shown, lower, higher = value, show_number(value), "lower it", "raise it"
    elif isinstance(value, str | list | dict):
        unit = "characters" if isinstance(value, str) else "entries"
        size, shown = len(value), f"{len(value)} {unit}"
        lower, higher = f"remove {size - (most or 0)} of them", "add to them"
        if isinstance(value, str):
            lower = "shorten it; what is long belongs into a file of src/ or under [channels]"
            higher = _cure_without_arn(value, model) or "lengthen it"
    else:
        return
    if most is not None and size > most:
        yield Violation(path, f"{shown}, and AWS allows {most}", lower)
    if least is not None and size < least:
        yield Violation(path, f"{shown}, and AWS requires {least}", higher)


def _cure_without_arn(value: str, model: Any) -> str:
    """What to give where AWS expects an ARN and the value is a name; empty for other texts."""
    pattern = model.metadata.get("pattern", "")
    kind = re.search(r"arn:aws.*:([a-z-]+)/", pattern)
    if not pattern.startswith("arn:") or value.startswith("arn:") or not kind:
        return ""
    return f"give its ARN, which ends in :{kind[1]}/{value}"


def show_number(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def _text(value: str, model: Any, path: str) -> Iterator[Violation]:
    """A text against the model's pattern, or its enumeration."""
    if len(value) > model.metadata.get("max", len(value)):
        return  # said already
    pattern = compiled(model.metadata.get("pattern", ""))
    if pattern and not pattern.fullmatch(value):
        if len(value) < model.metadata.get("min", 0):
            return  # said already
        problem = f'"{value[:80]}" does not match {pattern.pattern}'
        cure = _cure_without_arn(value, model) or _cure_of_pattern(value, pattern.pattern)
        yield Violation(path, problem, cure)
    elif model.enum and value not in model.enum:
        problem = f'"{value[:80]}" is not known to the installed botocore'
        yield Violation(path, problem, cure_for_unknown_name(value, model.enum))


# Java's classes of characters, which Python's patterns do not have, as ones that hold at least as
# much; each other one, as punctuation and symbols, is about as much as \S.
JAVA_CLASSES = {"L": r"\w", "N": r"\w", "Z": r"\s", "Alnum": "A-Za-z0-9"}


@functools.cache
def compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern of AWS's model; None where there is none, or Python cannot read it.

    Three of botocore 1.44 cannot be read: two have `${1,128}` at their end, and one has surrogates.
    """
    python = re.sub(r"\\p\{(\w+)\}", lambda name: JAVA_CLASSES.get(name[1], r"\S"), pattern)
    try:
        return re.compile(python) if python else None
    except re.error:
        return None


def _cure_of_pattern(value: str, pattern: str) -> str:
    """Which characters to take out, where the pattern is a class of characters and that alone."""
    allowed = re.fullmatch(r"\(?(\[[^[]+\])[*+]\)?", pattern)
    if not allowed:
        return "change it"
    wrong = [
        repr(character) for character in dict.fromkeys(value) if not re.match(allowed[1], character)
    ]
    return f"take out {', '.join(wrong)}" if wrong else "change it"


def _members(value: dict[str, Any], model: Any, path: str) -> Iterator[Violation]:
    """A structure: members that AWS knows, and those that it requires."""
    for key, item in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if key in model.members:
            yield from violations(item, model.members[key], inner)
        else:
            above = path or model.name
            problem = f"{above} has no such member in the installed botocore"
            yield Violation(inner, problem, cure_for_unknown_name(str(key), model.members))
    for key in model.required_members:
        if key not in value:
            inner = f"{path}.{key}" if path else key
            yield Violation(inner, "is missing, and AWS requires it", "add it")


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
    """What ends the names of AWS's hosts in a region: `amazonaws.com`, in China another."""
    import botocore.session

    name = partition(region)
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    return next(str(entry["dnsSuffix"]) for entry in partitions if entry["partition"] == name)


def call(client: Any, verb: str, kind: str, name: str, **parameters: Any) -> dict[str, Any] | None:
    """Create, describe, stop or delete something by its name; None where nothing has that name."""
    from botocore import xform_name
    from botocore.exceptions import ClientError

    try:
        return getattr(client, xform_name(verb + kind))(**{f"{kind}Name": name, **parameters})
    except ClientError as error:
        if verb == "Create" or not re.search("not f(i|ou)nd|does not exist", str(error)):
            raise
        return None


def s3_uri(text: str) -> bool:
    """Whether it is an address in S3, by AWS's own patterns (API_S3DataSource, S3Uri; the bucket's
    by botocore.handlers.VALID_BUCKET, or an access point's ARN).
    """
    return bool(re.fullmatch(r"s3://([\w.-]{1,255}|arn:[^/]+)(/.*)?", text, re.ASCII))


def usual_s3_uri(text: str) -> bool:
    """Whether a bucket of today may have the name, and the key has no space. In us-east-1 buckets
    from before March 2018 may have capitals and underscores (S3's user guide, Bucket naming rules).
    """
    return bool(re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?", text))


def s3_location(uri: str) -> tuple[str, str]:
    """Bucket and key of an S3 address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def directory_bucket(name: str) -> bool:
    """Whether a bucket is one of S3 Express (s3/latest/userguide/directory-bucket-naming-rules)."""
    return name.endswith("--x-s3")


def objects(uri: str, s3: Any) -> list[dict[str, Any]]:
    """The first objects at an S3 address, without empty ones; of archived ones whether a copy that
    can be read was restored (S3's API, RestoreStatus).
    """
    bucket, prefix = s3_location(uri)
    more = ["RestoreStatus"]
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, OptionalObjectAttributes=more)
    return [item for item in listed.get("Contents", []) if item["Size"]]


def code(problem: Exception) -> str:
    """AWS's name for an error that it answered with; empty for one that arose on the way."""
    return str(getattr(problem, "response", {}).get("Error", {}).get("Code", ""))


def denied(problem: Exception) -> bool:
    return bool(re.search(r"AccessDenied|Unauthorized|^403$", code(problem)))


def transient(problem: Exception) -> bool:
    """Whether asking again later may succeed: no network, throttled, or a failure inside AWS."""
    from botocore import exceptions as e

    if isinstance(problem, e.HTTPClientError | e.ConnectionError):
        return True
    return bool(TRANSIENT.search(code(problem)))


@contextmanager
def errors(subject: str = "", instead: str = "") -> Iterator[None]:
    """Turn what boto3 raises into a UserError.

    Args:
        subject: begins the problem.
        instead: another cure.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as failure:
        known = explain(failure)
        problem = f"{subject}: {known.problem}" if subject else known.problem
        cures = [cure for cure in (known.cure, instead) if cure]
        raise UserError(problem, ", or ".join(cures)) from failure


@contextmanager
def print_user_errors() -> Iterator[None]:
    """For a notebook's cell: a mistake's sentence in place of its stack trace."""
    try:
        with errors():
            yield
    except UserError as failure:
        print(*error_lines(failure), sep="\n")
    except KeyboardInterrupt:
        print("interrupted")


def explain(failure: Exception) -> UserError:
    """What an error of boto3's means, and what to do about it."""
    from botocore import exceptions as e

    if isinstance(failure, e.ClientError):
        return _refusal(failure)
    if isinstance(failure, e.NoCredentialsError | e.PartialCredentialsError):
        return UserError("there are no AWS credentials here", sign_in())
    if isinstance(failure, e.ProfileNotFound):
        said = str(failure)
        cure = "set AWS_PROFILE to one that aws configure list-profiles prints"
        return UserError(f"{said[:1].lower()}{said[1:]}", cure)
    if isinstance(failure, e.SSOError | e.UnauthorizedSSOTokenError | e.TokenRetrievalError):
        return UserError(f"the single sign-on session cannot be used ({failure})", sign_in())
    if isinstance(failure, e.HTTPClientError | e.ConnectionError):
        problem = f"AWS cannot be reached ({type(failure).__name__})"
        return UserError(problem, "check the network, the proxy, and the region")
    return UserError(" ".join(f"AWS: {failure}".split()), "correct what it names")


def _refusal(failure: Any) -> UserError:
    """What an answer of AWS's that is an error means."""
    name, message = code(failure), failure.response["Error"].get("Message", "")
    operation = failure.operation_name
    if "Expired" in name:
        return UserError("AWS credentials have expired", sign_in())
    if name in REFUSED_KEYS:
        cure = f"check AWS_PROFILE, or {sign_in()}"
        return UserError(f"AWS does not know these credentials ({name})", cure)
    if denied(failure):
        cure = f"ask for that permission ({message})"
        return UserError(f"these credentials may not call {operation}", cure)
    return UserError(f"AWS refused {operation}: {message or name}", "correct what it names")


def sign_in() -> str:
    """How this user gets credentials: Studio's role, single sign-on, or keys."""
    import botocore.session
    from botocore.exceptions import BotoCoreError

    if os.environ.get("SAGEMAKER_APP_TYPE") or os.environ.get(
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
    ):
        return "restart the Studio space, whose role renews them"
    session = botocore.session.Session()
    try:
        config = session.get_scoped_config()
    except BotoCoreError:
        config = {}
    profile = f" --profile {session.profile}" if session.profile else ""
    if "sso_session" in config or "sso_start_url" in config:
        return f"run aws sso login{profile}"
    keys = f"run aws configure{profile} with an access key"
    return f"{keys}, or aws configure sso where your organisation has that"
