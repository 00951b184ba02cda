"""A stub of Secrets Manager and Parameter Store: a rehearsed host reads its secrets as on AWS.

The values are this shell's. They are in no host's environment, file or log: train.py asks for them
over HTTP, as boto3 does there. Any user of this machine reaches the port; it answers who names the
access key that the hosts' environment holds, a new one for each rehearsal, and no other.
"""

import contextlib
import hmac
import json
import re
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from smlightning import stored_secrets
from smlightning.errors import UserError
from smlightning.stored_secrets import Reference

# The headers by which AWS's JSON protocol names a call, and how each service says "not there".
GET_SECRET, NO_SECRET = "secretsmanager.GetSecretValue", "ResourceNotFoundException"
GET_PARAMETER, NO_PARAMETER = "AmazonSSM.GetParameter", "ParameterNotFound"
# Of a signature, version 4, which every call has
# (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html).
CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/")
NO_CREDENTIAL = "UnrecognizedClientException"
TOO_LARGE = "RequestEntityTooLargeException"
MOST_BYTES = 2**16  # of a call, which names a secret


@dataclass
class Store:
    """Values by their names in the store, and how often each was read.

    Attributes:
        address: of the stub; "" where there is no secret.
        access_key: of the hosts' credentials, by which they are known.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    reads: Counter[str] = field(default_factory=Counter)
    access_key: str = field(default_factory=lambda: f"REHEARSAL{secrets.token_hex(16)}", repr=False)

    def knows(self, authorization: str) -> bool:
        """Whether a call's header names the hosts' access key."""
        match = CREDENTIAL.search(authorization)
        given = match[1] if match else ""
        return hmac.compare_digest(given.encode(), self.access_key.encode())

    def answer(self, call: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """HTTP status and body: a secret's plain text, a parameter decrypted, or AWS's refusal."""
        if call == GET_SECRET:
            name, key, absent = given.get("SecretId", ""), given.get("SecretId", ""), NO_SECRET
        elif call == GET_PARAMETER:
            name, absent = given.get("Name", ""), NO_PARAMETER
            key = f"{stored_secrets.PARAMETER}{name}"
        else:
            return 400, {"__type": "UnknownOperationException"}
        if key not in self.values:
            return 400, {"__type": absent, "message": f"{name} is not in the rehearsal's store"}
        self.reads[key] += 1
        if call == GET_SECRET:
            return 200, {"Name": name, "SecretString": self.values[key]}
        value = self.values[key] if given.get("WithDecryption") else "encrypted"
        return 200, {"Parameter": {"Name": name, "Type": "SecureString", "Value": value}}

    def variables(self, shell: Mapping[str, str]) -> dict[str, str]:
        """What leads boto3 to the stub, and nowhere else; the credentials open nothing."""
        if not self.address:
            return {}
        direct = shell.get("no_proxy") or shell.get("NO_PROXY")
        return {
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": self.address,
            "AWS_ENDPOINT_URL_SSM": self.address,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": "rehearsal",
            "no_proxy": ",".join(filter(None, [direct, "127.0.0.1"])),
        }


def place(reference: Reference) -> str:
    """The name of a secret or parameter in the store."""
    return f"{stored_secrets.PARAMETER if reference.is_parameter else ''}{reference.name}"


def contents(secrets: Mapping[str, str], shell: Mapping[str, str]) -> dict[str, str]:
    """Place in the store → its text, by the shell's variables.

    Of the variables that a secret, or a key of it, fills one at least is set. A secret's keys make
    one text of JSON. The store holds one version of each.

    Args:
        secrets: variable → what [secrets] of job.toml says of it.
        shell: variable → value.

    Raises:
        UserError: variables that are filled from the same have different values here.
    """
    texts: dict[str, str] = {}
    members: dict[str, dict[str, str]] = {}
    for variable, text in secrets.items():
        reference = stored_secrets.parse(text)
        where = place(reference)
        values = members.setdefault(where, {}) if reference.key else texts
        name = reference.key or where
        value = shell.get(variable, values.get(name, ""))
        if values.get(name, "") not in ("", value):
            first = next(other for other in secrets if secrets[other] == text)
            problem = f"{first} and {variable} name the secret {text}, and differ in this shell"
            raise UserError(problem, "export the same value for both")
        values[name] = value
    for where, values in members.items():
        if where not in texts:
            texts[where] = json.dumps(values)
        for key, value in values.items():
            refuse_other_value(where, key, value, texts[where])
    return texts


def refuse_other_value(where: str, key: str, value: str, text: str) -> None:
    """Refuse a variable for a secret's whole text that does not hold what another has of its key.

    Raises:
        UserError: as said.
    """
    try:
        is_same = stored_secrets.value(text, key) == value
    except ValueError:
        is_same = False
    if not is_same:
        problem = f"a variable holds another {where}:{key} in this shell than that of all {where}"
        raise UserError(problem, "export JSON with the same value of that key")


@contextlib.contextmanager
def serve(values: Mapping[str, str]) -> Iterator[Store]:
    """A store that answers on a port of this machine, while the body runs.

    Args:
        values: by name in the store; of Parameter Store with ``ssm:`` before it, as in job.toml.
    """
    store = Store(values)
    if not values:
        yield store
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds without a byte, after which a caller is left

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            is_short = re.fullmatch(r"\d{1,6}", length) and int(length) <= MOST_BYTES
            # Read also of who is rejected: else closing the connection might cut the answer off.
            given = self.rfile.read(int(length)) if is_short else b""
            if not store.knows(self.headers.get("Authorization", "")):
                status, answer = 400, {"__type": NO_CREDENTIAL}
            elif not is_short:
                status, answer = 413, {"__type": TOO_LARGE}
            else:
                call = self.headers.get("X-Amz-Target", "")
                status, answer = store.answer(call, json.loads(given))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: a rehearsal's output is the hosts'."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        store.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield store
        finally:
            server.shutdown()
