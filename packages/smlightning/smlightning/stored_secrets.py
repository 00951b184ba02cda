"""A secret of Secrets Manager or a parameter of Parameter Store: its reference, and its value.

A reference of Secrets Manager is a name or an ARN; ``:KEY`` after it selects a key of the JSON that
the secret holds, as in CodeBuild
(https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html, env/secrets-manager).
A secret's own name holds no colon (API_CreateSecret). ``ssm:NAME`` is a parameter.
"""

import re
from dataclasses import dataclass
from typing import Any

# Before a variable's name: its value in a rehearsal, where the secret is not read from AWS.
REHEARSED = "REHEARSAL_SECRET_"
PARAMETER = "ssm:"  # before a name in Parameter Store
REFERENCE = re.compile(
    rf"{PARAMETER}[\w./:-]+"
    rf"|(?!{PARAMETER})(?P<name>(arn:[\w-]+:secretsmanager:[\w-]+:\d{{12}}:secret:)?[\w/+=.@-]+)"
    r"(:(?P<key>[^:\s]([^:\r\n]*[^:\s])?))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Reference:
    """A secret that job.toml refers to.

    Attributes:
        name: name or ARN of a secret, or name of a parameter.
        is_parameter: whether it is in Parameter Store.
        key: of the JSON object that the secret holds; empty: the secret's whole text.
    """

    name: str
    is_parameter: bool = False
    key: str = ""

    @property
    def region(self) -> str:
        """The region of its ARN; empty: the region of the job."""
        return self.name.split(":")[3] if self.name.startswith("arn:") else ""


def parse(text: str) -> Reference:
    """The parts of a reference; of a text that REFERENCE does not match, a name."""
    if text.startswith(PARAMETER):
        return Reference(text.removeprefix(PARAMETER), is_parameter=True)
    match = REFERENCE.fullmatch(text)
    return Reference(match["name"], key=match["key"] or "") if match else Reference(text)


def read(reference: Reference, region: str | None) -> str:
    """The whole text of a secret or parameter, as it is stored.

    Args:
        reference: its key is not used.
        region: of the job.

    Raises:
        botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError: AWS did not answer.
        KeyError: the secret is binary.
    """
    import boto3  # in AWS's images

    region = reference.region or region
    answer: Any
    if reference.is_parameter:
        parameters = boto3.client("ssm", region_name=region)
        answer = parameters.get_parameter(Name=reference.name, WithDecryption=True)
        return str(answer["Parameter"]["Value"])
    secrets = boto3.client("secretsmanager", region_name=region)
    answer = secrets.get_secret_value(SecretId=reference.name)
    return str(answer["SecretString"])
