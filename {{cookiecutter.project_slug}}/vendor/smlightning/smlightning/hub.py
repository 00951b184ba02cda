"""Secrets of a job, the Hugging Face hub's token one of them; the hub's failures, as one sentence.

A job's request names its secrets and does not hold them.
"""

import contextlib
import re
import socket
from collections.abc import Iterator, MutableMapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from smlightning.errors import UserError, root_cause

SECRET = "HUB_TOKEN_SECRET"  # noqa: S105  job.toml's hub_token_secret sets this variable
# Before the name of a variable, this one holds the name of the secret that it is filled from:
# job.toml's [secrets].
SECRET_FOR = "SECRET_FOR_"  # noqa: S105
STORE = "ssm:"  # before a name in Parameter Store; else it is a name or ARN in Secrets Manager
TOKEN = "HF_TOKEN"  # noqa: S105  the variable that the hub's client reads


def sign_in(local_rank: int, env: MutableMapping[str, str]) -> None:
    """Fill the variables of job.toml's [secrets] on the one process that prepares a host's data.

    That is where a host's data is fetched, and where rank 0 logs. Values are neither written nor
    printed. The hub's token is one of them: the host's other processes take from the cache what
    this one has fetched, since without a token the hub would refuse them. Call it before anything
    imports huggingface_hub. A variable that is set already is left alone.

    Raises:
        UserError: a secret cannot be read, or holds nothing that a variable can.
    """
    names = secrets(env)
    if TOKEN in names and local_rank != 0 and TOKEN not in env:
        env["HF_HUB_OFFLINE"] = "1"
    if local_rank != 0:
        return
    for variable, name in names.items():
        if variable not in env:
            env[variable] = secret(variable, name, env.get("AWS_REGION"))


def secrets(env: MutableMapping[str, str]) -> dict[str, str]:
    """Variable → name of the secret that it is filled from."""
    names = {
        variable.removeprefix(SECRET_FOR): name
        for variable, name in env.items()
        if variable.startswith(SECRET_FOR)
    }
    if env.get(SECRET):
        names.setdefault(TOKEN, env[SECRET])
    return names


def secret(variable: str, name: str, region: str | None) -> str:
    """The value of a secret; raises UserError as `sign_in` does, which never holds the value.

    It arrives as it is stored, but for line ends after it: passwords hold blanks and braces, and
    some services want JSON or a key of many lines.
    """
    key = f"secrets.{variable}" if variable != TOKEN else "hub_token_secret"
    try:
        value = _read_secret(name, region).rstrip("\r\n")
    except Exception as error:  # of boto3, of the network, or an answer without text
        raise UserError(
            f"{key} = {name} cannot be read ({root_cause(error)})",
            "correct the name, and let the job's role read it "
            "(secretsmanager:GetSecretValue, ssm:GetParameter)",
        ) from None
    if variable == TOKEN:
        value = value.strip()
        if not re.fullmatch(r"\w+", value):
            raise UserError(
                f"{key} = {name} holds more than a token",
                "store the token as plain text, without a key",
            )
    elif not value.strip() or "\0" in value:  # which no variable of a process can hold
        raise UserError(f"{key} = {name} holds no text", "store the value as text")
    return value


def _read_secret(name: str, job_region: str | None) -> str:
    import boto3  # in AWS's images

    region = name.split(":")[3] if name.startswith("arn:") else job_region
    answer: Any
    if name.startswith(STORE):
        parameters = boto3.client("ssm", region_name=region)
        answer = parameters.get_parameter(Name=name.removeprefix(STORE), WithDecryption=True)
        return str(answer["Parameter"]["Value"])
    secrets = boto3.client("secretsmanager", region_name=region)
    answer = secrets.get_secret_value(SecretId=name)
    return str(answer["SecretString"])


@contextlib.contextmanager
def errors(problem: str, local: bool = False) -> Iterator[None]:
    """Turn whatever the hub's client raises in here into a UserError that begins with ``problem``.

    A UserError stays as it is.

    Where there is no network the client looks in its cache at once: it would otherwise retry for
    half a minute.

    Args:
        local: what is read is a folder of this machine, for which no network is needed.

    Raises:
        UserError: anything was raised in here.
    """
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    if not local and not _reachable(huggingface_hub.constants.ENDPOINT):
        import datasets

        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the hub, the network and each file type have their own
        reason = root_cause(error)
        if huggingface_hub.constants.HF_HUB_OFFLINE and not local:
            reason = "not in the cache, and no network or HF_HUB_OFFLINE"
        cure = "check the name" if local else "check the name and the network"
        raise UserError(f"{problem} ({reason})", cure) from error


def _reachable(address: str) -> bool:
    """Whether the hub's name resolves, or a proxy does that."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, 443)
    except OSError:
        return False
    return True
