"""boto3 clients, what botocore's model refuses, and what AWS's errors mean: one sentence each, with its cure."""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launch.findings import near
from runtime.report import UserError

REFUSED_KEYS = "UnrecognizedClientException InvalidClientTokenId SignatureDoesNotMatch InvalidAccessKeyId AuthFailure"
TRANSIENT = r"Throttl|TooManyRequests|RequestLimitExceeded|SlowDown|ServiceUnavailable|Internal(Failure|Err)"

TYPES = {"string": str, "integer": int, "long": int, "boolean": bool, "list": list, "map": dict, "structure": dict}


def client(service: str, region: str) -> Any:
    """A boto3 client that gives up in seconds, not minutes; its session is its own, since threads may not share one."""
    import boto3
    from botocore.config import Config

    patience = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})
    return boto3.Session(region_name=region).client(service, config=patience)


@functools.cache
def shape(name: str) -> Any:
    """A shape of botocore's model of SageMaker, with its limits."""
    import botocore.session

    return botocore.session.get_session().get_service_model("sagemaker").shape_for(name)


def violations(value: Any, model: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """What of `value` is beyond the limits of a botocore shape: (path within it, problem, cure)."""
    expected = TYPES.get(model.type_name)
    if expected and (not isinstance(value, expected) or isinstance(value, bool) != (expected is bool)):
        yield path, f"{str(value)[:80]!r} is not a {model.type_name}", "correct its type"
        return
    most, least, pattern = (model.metadata.get(key) for key in ("max", "min", "pattern"))
    size, unit = (value, "") if isinstance(value, int) else (len(value), " entries")
    if isinstance(value, str):
        unit = " characters"
        pattern = re.sub(r"\\p\{(.)\}", lambda found: {"L": r"\w", "N": r"\d"}.get(found[1], r"\s"), pattern or "")
    if most is not None and size > most:
        cure = "shorten it; what is long belongs into a file of src/ or under [channels]" if unit else "lower it"
        yield path, f"{size}{unit}, and AWS allows {most}", cure
    elif isinstance(value, str) and pattern and not re.fullmatch(pattern, value):
        allowed = re.fullmatch(r"\(?(\[[^[]+\])[*+]\)?", pattern)  # where it is a class of characters, and that alone
        wrong = [repr(each) for each in dict.fromkeys(value) if allowed and not re.match(allowed[1], each)]
        cure = f"take out {', '.join(wrong)}" if wrong else "change it"
        yield path, f'"{value[:80]}" does not match {pattern}', cure
    elif isinstance(value, str) and model.enum and value not in model.enum:
        yield path, f'"{value[:80]}" is not known to the installed botocore', near(value, model.enum)
    if least is not None and size < least:
        yield path, f"{size}{unit}, and AWS requires {least}", "lengthen it" if unit else "raise it"
    if model.type_name == "map":
        for key, item in value.items():
            yield from violations(key, model.key, f"{path}.{key[:40]}")
            yield from violations(item, model.value, f"{path}.{key[:40]}")
    elif model.type_name == "list":
        for item in value:
            name = next((str(item[key]) for key in ("Name", "Key", "ChannelName") if key in item), "")
            yield from violations(item, model.member, f"{path}.{name[:40]}" if name else path)
    elif model.type_name == "structure":
        for key, item in value.items():
            yield from violations(item, model.members[key], f"{path}.{key}" if path else key)


def partition(region: str) -> str:
    """`aws`, `aws-cn` or `aws-us-gov`; `aws` for a region that botocore does not know."""
    import botocore.session
    from botocore.exceptions import UnknownRegionError

    try:
        return str(botocore.session.get_session().get_partition_for_region(region))
    except UnknownRegionError:
        return "aws"


def call(client: Any, verb: str, kind: str, name: str, **parameters: Any) -> dict[str, Any] | None:
    """Create, describe, stop or delete something by its name; None where there is nothing of that name."""
    from botocore import xform_name
    from botocore.exceptions import ClientError

    try:
        return getattr(client, xform_name(verb + kind))(**{f"{kind}Name": name, **parameters})
    except ClientError as error:
        if verb == "Create" or not re.search("not f(i|ou)nd", str(error)):
            raise
        return None


def s3_uri(text: str) -> bool:
    return bool(re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?", text))


def s3_location(uri: str) -> tuple[str, str]:
    """Bucket and key of an S3 address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def objects(uri: str, s3: Any) -> list[dict[str, Any]]:
    """The first objects at an S3 address, without empty ones."""
    bucket, prefix = s3_location(uri)
    return [item for item in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", []) if item["Size"]]


def code(problem: Exception) -> str:
    """AWS's name for an error that it answered with; empty for one of the network's or of this machine's."""
    return str(getattr(problem, "response", {}).get("Error", {}).get("Code", ""))


def denied(problem: Exception) -> bool:
    return bool(re.search(r"AccessDenied|Unauthorized|^403$", code(problem)))


def transient(problem: Exception) -> bool:
    """Whether asking again later may succeed: no network, throttled, or a failure inside AWS."""
    from botocore import exceptions as e

    return isinstance(problem, e.HTTPClientError | e.ConnectionError) or bool(re.search(TRANSIENT, code(problem)))


@contextmanager
def errors(what: str = "", instead: str = "") -> Iterator[None]:
    """Turn what boto3 raises into one sentence with its cure; `what` begins it, and `instead` is a cure as well."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        said = explain(error)
        cure = f"{', or' if '; ' in said else ';'} {instead}" if instead else ""
        raise UserError(f"{what}: {said}{cure}" if what else said) from error


@contextmanager
def print_user_errors() -> Iterator[None]:
    """For a notebook's cell: a mistake's sentence in place of its stack trace, and the next cells still run."""
    try:
        with errors():
            yield
    except UserError as error:
        print(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted")


def explain(error: Exception) -> str:
    """What an AWS error means and what to do about it, in one sentence."""
    from botocore import exceptions as e

    if isinstance(error, e.ClientError):
        name, message = code(error), error.response["Error"].get("Message", "")
        if "Expired" in name:
            return f"AWS credentials have expired; {sign_in()}"
        if name in REFUSED_KEYS.split():
            return f"AWS does not know these credentials ({name}); check AWS_PROFILE, or {sign_in()}"
        if denied(error):
            return f"these credentials may not call {error.operation_name}; ask for that permission ({message})"
        return f"AWS refused {error.operation_name}: {message or name}"
    if isinstance(error, e.NoCredentialsError | e.PartialCredentialsError):
        return f"there are no AWS credentials here; {sign_in()}"
    if isinstance(error, e.ProfileNotFound):
        said = f"{str(error)[:1].lower()}{str(error)[1:]}"
        return f"{said}; set AWS_PROFILE to one that aws configure list-profiles prints"
    if isinstance(error, e.SSOError | e.UnauthorizedSSOTokenError | e.TokenRetrievalError):
        return f"the single sign-on session cannot be used ({error}); {sign_in()}"
    if isinstance(error, e.HTTPClientError | e.ConnectionError):
        return f"AWS cannot be reached ({type(error).__name__}); check the network, the proxy, and the region"
    return " ".join(f"AWS: {error}".split())


def sign_in() -> str:
    """How this user gets credentials: Studio's role, single sign-on, or keys."""
    import botocore.session
    from botocore.exceptions import BotoCoreError

    if os.environ.get("SAGEMAKER_APP_TYPE") or os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return "restart the Studio space, whose role renews them"
    session = botocore.session.Session()
    try:
        config = session.get_scoped_config()
    except BotoCoreError:
        config = {}
    profile = f" --profile {session.profile}" if session.profile else ""
    if "sso_session" in config or "sso_start_url" in config:
        return f"run aws sso login{profile}"
    return f"run aws configure{profile} with an access key, or aws configure sso where your organisation has that"
