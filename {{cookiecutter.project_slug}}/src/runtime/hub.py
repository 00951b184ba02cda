"""A token of the Hugging Face hub, read where AWS keeps secrets: a job's request names it and does not hold it."""

import re
from collections.abc import MutableMapping

from runtime.report import UserError, root_cause

SECRET = "HUB_TOKEN_SECRET"  # noqa: S105  set by job.toml's hub_token_secret
STORE = "ssm:"  # before a name in Parameter Store; else it is a name or ARN in Secrets Manager


def sign_in(local_rank: int, env: MutableMapping[str, str]) -> None:
    """Put the token into HF_TOKEN, which the hub's client reads, on the one process that prepares a host's data.

    It is neither written nor printed. The host's other processes take from the cache what this one has fetched: without
    a token the hub would refuse them. Called before anything imports huggingface_hub; where HF_TOKEN is set already,
    nothing is asked.

    Raises:
        UserError: it cannot be read, or what the secret holds is no token.
    """
    name = env.get(SECRET, "")
    if not name or "HF_TOKEN" in env:
        return
    if local_rank != 0:
        env["HF_HUB_OFFLINE"] = "1"
        return
    try:
        import boto3  # in AWS's images

        region = name.split(":")[3] if name.startswith("arn:") else env.get("AWS_REGION")
        if name.startswith(STORE):
            ssm = boto3.client("ssm", region_name=region)
            token = ssm.get_parameter(Name=name.removeprefix(STORE), WithDecryption=True)["Parameter"]["Value"]
        else:
            token = boto3.client("secretsmanager", region_name=region).get_secret_value(SecretId=name)["SecretString"]
    except Exception as error:  # of boto3, of the network, or an answer without text
        cure = "correct the name, and let the job's role read it (secretsmanager:GetSecretValue, ssm:GetParameter)"
        raise UserError(f"hub_token_secret = {name} cannot be read ({root_cause(error)}); {cure}.") from None
    if not re.fullmatch(r"\w+", token.strip()):
        raise UserError(f"hub_token_secret = {name} holds no token alone; store it as plain text, without a key.")
    env["HF_TOKEN"] = token.strip()
