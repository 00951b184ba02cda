"""Secrets where they would be seen: in what the AWS console shows of a job, and in src/."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning import hub
from smlightning.launch.findings import Finding, error
from smlightning.launch.job import Job
from smlightning.project import Project

# Keys of AWS, private keys, tokens of Slack, Hugging Face, GitHub, OpenAI, passwords in addresses.
SECRET = re.compile(
    r"A[KS]IA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|\bxox[abp]-"
    r"|\b(hf_|gh[pousr]_|github_pat_|sk-)[A-Za-z0-9_-]{30,}|://[^/\s:@]+:[^/\s@]+@"
)
SECRET_NAME = re.compile(
    r"(^|_)(secret|token|password|passwd|api_?key|access_key|credentials?)(_|$)", re.I
)
# A name that says of a secret where it is: SECRET_ARN, TOKEN_FILE, or a tokenizer's EOS_TOKEN_ID.
REFERENCE_NAME = re.compile(r"_(arns?|names?|ids?|files?|path|folder|dir|ur[il]|key_spec)$", re.I)
ONE_WORD = re.compile(r"(?!arn:)[^\s/<>|\[\]{}]+")
SECRET_FILE = re.compile(
    r"\.env(\..+)?|.*\.(pem|key|p12)|id_(rsa|ed25519|ecdsa)|credentials(\.json)?|\.netrc", re.I
)
SHORTEST = 9  # characters of a secret that is told by its name alone


def visible(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No secret in what the AWS console shows of the job."""
    names = {f"environment.{hub.SECRET}": "hub_token_secret"}
    for variable in job.secrets:
        names[f"environment.{hub.SECRET_FOR}{variable}"] = f"secrets.{variable}"
    shown = {
        "hyperparameters": job.hyperparameters,
        "environment": request.get("Environment", {}),
        "tags": {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])},
        "request": job.request,
    }
    for key, text in texts(shown):
        if key in names:
            # It holds the name of a secret; a token itself is the mistake.
            if SECRET.search(text):
                yield error(
                    names[key],
                    "looks like a secret, and the AWS console shows it",
                    "keep it in Secrets Manager, and give the name of that secret here",
                )
        elif SECRET.search(text) or told_by_name(key, text):
            yield error(
                key,
                "looks like a secret, and the AWS console shows it",
                "keep it in Secrets Manager, and name that secret in [secrets]: "
                'VARIABLE = "name of the secret"',
            )


def told_by_name(key: str, text: str) -> bool:
    """Whether the name of a value says that it is a secret, and the value can be one.

    A secret is one word of letters and digits; the name, the ARN, the address or the path of a
    secret is not, nor is a word of a vocabulary, as </s>.
    """
    name = key.rpartition(".")[2]
    if not SECRET_NAME.search(name) or REFERENCE_NAME.search(name) or len(text) < SHORTEST:
        return False
    return bool(ONE_WORD.fullmatch(text) and re.search("[A-Za-z]", text) and re.search(r"\d", text))


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in tables and lists, after the names of the tables and the key that lead to it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item, key)
