"""A job's secrets, such as the token of the Hugging Face hub; errors of the hub as one sentence.

A job's request contains the names of its secrets, not their values.
"""

import contextlib
import difflib
import itertools
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from smlightning import stored_secrets
from smlightning.errors import UserError, root_cause
from smlightning.stored_secrets import Reference

# Prefix of the variables that hold the names of secrets, from job.toml's [secrets].
SECRET_FOR = "SECRET_FOR_"  # noqa: S105
TOKEN = "HF_TOKEN"  # noqa: S105  the variable that the hub's client reads
NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")  # of a data set or a model: name, or owner/name


def sign_in(local_rank: int, env: MutableMapping[str, str]) -> None:
    """Set the variables of job.toml's [secrets] in the first process of each host.

    This process downloads the host's data, and rank 0 logs. Values are never written or printed.
    Each secret is read once, so all keys have the same version. A variable that is set stays.

    With a token of the hub, the host's other processes use only the cache, since the hub would
    reject them without the token.

    Raises:
        UserError: a secret cannot be read, or its value cannot be that of a variable.
    """
    names = secrets(env)
    if local_rank != 0:
        if TOKEN in names and TOKEN not in env:
            env["HF_HUB_OFFLINE"] = "1"
            for imported in ("huggingface_hub.constants", "datasets.config"):
                if imported in sys.modules:  # it has read the variable already
                    setattr(sys.modules[imported], "HF_HUB_OFFLINE", True)  # noqa: B010
        return
    texts: dict[str, str] = {}  # by the name of the secret
    for variable, name in names.items():
        if variable in env:
            continue
        setting = f"secrets.{variable} = {name}"
        value = env.get(stored_secrets.REHEARSED + variable)
        if value is None:
            reference = stored_secrets.parse(name)
            whole = name.removesuffix(f":{reference.key}")
            if whole not in texts:
                texts[whole] = stored_text(setting, reference, env.get("AWS_REGION"))
            value = value_of_key(setting, reference.key, texts[whole])
        env[variable] = variable_value(setting, value, variable == TOKEN)


def secrets(env: MutableMapping[str, str]) -> dict[str, str]:
    """Each variable and the name of the secret for it."""
    return {
        variable.removeprefix(SECRET_FOR): name
        for variable, name in env.items()
        if variable.startswith(SECRET_FOR)
    }


def stored_text(setting: str, reference: Reference, region: str | None) -> str:
    """The stored text of a secret; a UserError never contains a value."""
    try:
        return stored_secrets.read(reference, region)
    except Exception as error:  # of boto3, of the network, or an answer without text
        raise UserError(
            f"{setting} cannot be read ({root_cause(error)})",
            "correct the name, and let the job's role read it "
            "(secretsmanager:GetSecretValue, ssm:GetParameter)",
        ) from None


def value_of_key(setting: str, key: str, text: str) -> str:
    """The text or number at a key in the stored JSON; without a key, the whole text."""
    if not key:
        return text
    try:
        content = json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        content = None
    found = content.get(key) if isinstance(content, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    if not isinstance(found, str):
        raise UserError(
            f'{setting}: the secret has no text or number under "{key}" in a JSON object',
            "correct the key, the part after the secret's name and a colon",
        )
    return found


def variable_value(setting: str, text: str, is_token: bool) -> str:
    """The stored text without line ends after it; a token of the hub without blanks around it.

    Everything else stays: passwords contain blanks, and some services need JSON or several lines.

    Raises:
        UserError: it is empty or has a zero byte, or is not a token.
    """
    if is_token and not re.fullmatch(r"\w+", text.strip()):
        raise UserError(
            f"{setting} holds more than a token",
            'store the token as plain text, or add its key in the JSON, as in "hub:token"',
        )
    if not text.strip():
        raise UserError(f"{setting} is empty", "store the value as text")
    if "\0" in text:
        raise UserError(f"{setting} contains a zero byte", "store the value as text")
    return text.strip() if is_token else text.rstrip("\r\n")


def similar_path(missing: str) -> str:
    """A path here that is similar to a missing one, as `data/train` to `data/trian`, or empty.

    Such a mistyped path may have the form of a name on the hub. A text without a slash is no path.
    """
    path = Path(os.path.expanduser(missing))  # noqa: PTH111  takes any user's name
    try:
        entries = path.parent.iterdir() if "/" in missing else iter(())
        names = [each.name for each in itertools.islice(entries, 10_000)]
    except (OSError, ValueError):  # no folder, or none that may be read
        return ""
    similar = difflib.get_close_matches(path.name, names, n=1)
    return str(path.with_name(similar[0])) if similar else ""


@contextlib.contextmanager
def errors(problem: str, local: bool = False) -> Iterator[None]:
    """Turn errors of the hub's client into a UserError that begins with ``problem``.

    A UserError stays as it is.

    Args:
        local: the body reads a local folder and needs no network.

    Raises:
        UserError: the body raised an error.
    """
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    with reachable_or_cached(local) as is_online:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the hub, the network and each file type have their own
            reason = root_cause(error)
            if not is_online:
                reason = "not in the cache, and no network or HF_HUB_OFFLINE"
            hint = "check the name" if local else "check the name and the network"
            raise UserError(f"{problem} ({reason})", hint) from error


@contextlib.contextmanager
def reachable_or_cached(local: bool = False) -> Iterator[bool]:
    """Let the hub's client use only its cache in the body if the hub's name does not resolve.

    Otherwise the client would retry for half a minute. Yields whether the client may connect.

    Args:
        local: as in `errors`.
    """
    from huggingface_hub import constants

    if local or constants.HF_HUB_OFFLINE or _reachable(constants.ENDPOINT):
        yield local or not constants.HF_HUB_OFFLINE
        return
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield False
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = False, before


def _reachable(address: str) -> bool:
    """Whether the hub's name resolves, or a proxy resolves it."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, 443)
    except OSError:
        return False
    return True
