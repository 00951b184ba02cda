"""The Hugging Face hub: its token, read where AWS keeps secrets; its failures, as one sentence.

A job's request names the secret and does not hold it.
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
STORE = "ssm:"  # before a name in Parameter Store; else it is a name or ARN in Secrets Manager


def sign_in(local_rank: int, env: MutableMapping[str, str]) -> None:
    """Put the token into HF_TOKEN on the one process that prepares a host's data.

    The hub's client reads that variable. The token is neither written nor printed. The host's other
    processes take from the cache what this one has fetched: without a token the hub would refuse
    them. Call it before anything imports huggingface_hub. Where HF_TOKEN is set already, nothing is
    read.

    Raises:
        UserError: the secret cannot be read, or holds no token.
    """
    name = env.get(SECRET, "")
    if not name or "HF_TOKEN" in env:
        return
    if local_rank != 0:
        env["HF_HUB_OFFLINE"] = "1"
        return
    try:
        token = _read_secret(name, env.get("AWS_REGION")).strip()
    except Exception as error:  # of boto3, of the network, or an answer without text
        raise UserError(
            f"hub_token_secret = {name} cannot be read ({root_cause(error)})",
            "correct the name, and let the job's role read it "
            "(secretsmanager:GetSecretValue, ssm:GetParameter)",
        ) from None
    if not re.fullmatch(r"\w+", token):
        raise UserError(
            f"hub_token_secret = {name} holds more than a token",
            "store the token as plain text, without a key",
        )
    env["HF_TOKEN"] = token


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
