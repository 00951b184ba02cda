"""Checks what the job's role lacks for its data, model, checkpoints, log, keys and secrets.

The role is used only after the start: a job whose role may not write the model fails when it ends.
IAM's own simulation decides; it reads neither a bucket's nor a key's own policy
(https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from smlightning import stored_secrets
from smlightning_sagemaker.findings import Finding, error, from_error, skipped, warning
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

# Actions of the role, and what the job needs each one for. infra/role-policy.json has all of them
# but kms:CreateGrant.
PURPOSES = {
    "s3:GetObject": "read its code, data and checkpoints",
    "s3:ListBucket": "read its code, data and checkpoints",
    "s3:PutObject": "store its model and checkpoints",
    "s3:DeleteObject": "delete old checkpoints",
    "kms:Decrypt": "read what this key encrypts",
    "kms:Encrypt": "store its model under this key",
    "kms:GenerateDataKey": "store its model and checkpoints under this key",
    "kms:CreateGrant": "encrypt the hosts' disks",
    "secretsmanager:GetSecretValue": "read its secrets",
    "ssm:GetParameter": "read its secrets",
    "logs:CreateLogGroup": "write its log",
    "logs:CreateLogStream": "write its log",
    "logs:PutLogEvents": "write its log",
}
ALLOW = "allow it as infra/role-policy.json does"
SYMMETRIC = "SYMMETRIC_DEFAULT"  # the keys that S3 and EBS take
WRITING = "s3:PutObject"  # a job without it runs to its end, and loses everything
# S3 Express and access points: their ARNs have other forms (userguide/access-points-naming.html).
OTHER_BUCKET = re.compile(r"arn:.*|.*(--x-s3|--xa-s3|-s3alias)")

Needs = Mapping[str, list[str]]  # action → ARNs that it is done on


def storage(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The role may read data and code, and write model, checkpoints and log.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html, model-checkpoints.html;
    keys begin with an address (API_S3DataSource).
    """
    read, written, kept = places(body)
    everything = [*read, *written]
    needs = {
        "s3:GetObject": everything,
        "s3:ListBucket": [place.partition("/")[0] for place in everything],
        "s3:PutObject": written,
        "s3:DeleteObject": kept,
    }
    yield from denied(job, body, needs)
    yield from log(job, body)


def places(body: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """ARNs of the objects that the job reads, of those that it writes, and of its checkpoints."""
    sources = [
        channel.get("DataSource", {}).get("S3DataSource", {})
        for channel in body.get("InputDataConfig", [])
    ]
    read = [
        # A manifest is one object; which objects it lists is not known here.
        ("" if str(source.get("S3DataType", "")).endswith("ManifestFile") else "*", source["S3Uri"])
        for source in sources
        if "S3Uri" in source
    ]
    output = body["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    code, model = (f"{output}/{body['TrainingJobName']}/{name}" for name in ("source", "output"))
    checkpoints = body.get("CheckpointConfig", {}).get("S3Uri", "")
    kept = arns(body, ("/*", checkpoints.rstrip("/")))
    return arns(body, *read, ("/*", code)), [*arns(body, ("/*", model)), *kept], kept


def arns(body: dict[str, Any], *addresses: tuple[str, str]) -> list[str]:
    """ARNs of objects in ordinary buckets, from the end of their keys and an S3 address."""
    partition = body["RoleArn"].split(":")[1]
    return [
        f"arn:{partition}:s3:::{uri.removeprefix('s3://')}{rest}"
        for rest, uri in addresses
        if aws.s3_uri(uri) and not OTHER_BUCKET.fullmatch(aws.s3_location(uri)[0])
    ]


def keys(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The role may use the KMS keys that the request names, and the buckets' own.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html
    """
    read, written, _ = places(body)
    output, disks = body["OutputDataConfig"], body["ResourceConfig"]
    reading, writing = ["kms:Decrypt"], ["kms:GenerateDataKey", "kms:Decrypt"]
    used = [
        ("request.OutputDataConfig.KmsKeyId", output.get("KmsKeyId"), [*writing, "kms:Encrypt"]),
        ("request.ResourceConfig.VolumeKmsKeyId", disks.get("VolumeKmsKeyId"), ["kms:CreateGrant"]),
    ]
    actions_in = dict.fromkeys(map(bucket_of, read), reading)
    actions_in |= dict.fromkeys(map(bucket_of, written), writing)
    for name, actions in actions_in.items():
        key = bucket_key(job, name)
        if key is None:
            problem = "these credentials may not look up its KMS key"
            yield skipped(f"bucket {name}", problem, "check that the job's role may use the key")
        used.append((f"bucket {name}", key, actions))
    needs: dict[str, list[str]] = {}
    for where, name, actions in used:
        if not name:
            continue
        try:
            key = aws.client("kms", job.region).describe_key(KeyId=name)["KeyMetadata"]
        except aws.failures() as failure:
            yield unknown_key(job, where, failure)
            continue
        spec = key.get("KeySpec", SYMMETRIC)
        if key["KeyState"] != "Enabled" or spec != SYMMETRIC:
            problem = f"KMS key {name} is {key['KeyState'] if spec == SYMMETRIC else spec}"
            hint = "enable the key" if spec == SYMMETRIC else "use a symmetric key"
            yield error(where, problem, hint)
        elif key["KeyManager"] != "AWS":  # which serves the whole account
            for action in actions:
                needs.setdefault(action, []).append(key["Arn"])
    yield from denied(job, body, needs)


def unknown_key(job: Job, where: str, failure: Exception) -> Finding:
    """The finding about a key that KMS does not describe: absent, of another region, or hidden."""
    problem = aws.explain(failure)
    if aws.code(failure) in ("NotFoundException", "InvalidArnException"):
        hint = f"use a key of {job.region}"
        return error(where, problem.problem, f"{hint}: the job fails when it uses this one")
    return from_error(where, problem, hint="it was not checked", level="skipped")


def bucket_of(arn: str) -> str:
    """The name of the bucket in the ARN of its objects."""
    return arn.partition(":::")[2].partition("/")[0]


def bucket_key(job: Job, name: str) -> str | None:
    """The KMS key that encrypts a bucket by default.

    Empty: S3's own key, or no bucket. None: these credentials may not look it up.
    """
    from botocore.exceptions import ClientError

    try:
        answer = aws.client("s3", job.region).get_bucket_encryption(Bucket=name)
    except ClientError as failure:
        if aws.denied(failure):
            return None
        if aws.code(failure).endswith(("NotFoundError", "NoSuchBucket")):
            return ""
        raise
    (rule,) = answer["ServerSideEncryptionConfiguration"]["Rules"]
    return str(rule.get("ApplyServerSideEncryptionByDefault", {}).get("KMSMasterKeyID", ""))


def log(job: Job, body: dict[str, Any]) -> Iterator[Finding]:
    """The role may write the job's log, without which a job trains unseen.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html; only an account's first
    job creates the group.
    """
    _, partition, _, _, account, _ = body["RoleArn"].split(":", 5)
    group = f"arn:{partition}:logs:{job.region}:{account}:log-group:{aws.LOG_GROUP}"
    streams = [f"{group}:log-stream:{body['TrainingJobName']}/*"]
    needs = dict.fromkeys(("logs:CreateLogStream", "logs:PutLogEvents"), streams)
    yield from denied(job, body, needs)
    try:
        aws.client("logs", job.region).describe_log_streams(logGroupName=aws.LOG_GROUP, limit=1)
    except aws.failures() as failure:
        if aws.code(failure) != "ResourceNotFoundException":
            raise
        yield from denied(job, body, {"logs:CreateLogGroup": [group]})


def secrets(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The role may read the job's secrets, which exist; nothing here reads their values.

    https://docs.aws.amazon.com/secretsmanager/latest/userguide/auth-and-access_examples.html
    https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-access.html
    """
    needs: dict[str, list[str]] = {}
    keys: dict[str, list[str]] = {}  # service → the customer's KMS keys that it decrypts with
    for variable, text in job.secrets.items():
        reference = stored_secrets.parse(text)
        try:
            action, arn, key = secret(job, body, reference)
        except LookupError:
            yield error(
                f"secrets.{variable}",
                f"{reference.name} does not exist",
                "create it, or correct the name",
            )
        else:
            needs.setdefault(action, []).append(arn)
            keys.setdefault(action.partition(":")[0], []).extend(customers(job, key))
    yield from denied(job, body, needs)
    for service, used in keys.items():
        yield from denied(job, body, {"kms:Decrypt": used}, service)


def customers(job: Job, key: str) -> list[str]:
    """The ARN of a customer's KMS key; none for AWS's own key, which serves the whole account."""
    if not key:
        return []
    facts = aws.client("kms", job.region).describe_key(KeyId=key)["KeyMetadata"]
    return [facts["Arn"]] if facts["KeyManager"] != "AWS" else []


def secret(
    job: Job, body: dict[str, Any], reference: stored_secrets.Reference
) -> tuple[str, str, str]:
    """The action that reads a secret, the secret's ARN, and its KMS key, which may be empty.

    Raises:
        LookupError: there is no such secret, or it is to be deleted.
    """
    from botocore.exceptions import ClientError

    region = reference.region or job.region
    if reference.is_parameter:
        # A version or label follows the name, after a colon (API_GetParameter).
        if reference.name.startswith("arn:"):  # another account may share it
            return "ssm:GetParameter", ":".join(reference.name.split(":")[:6]), ""
        name = reference.name.partition(":")[0]
        wanted = [{"Key": "Name", "Values": [name]}]
        parameters = aws.client("ssm", region).describe_parameters(ParameterFilters=wanted)
        if not parameters["Parameters"]:
            raise LookupError
        key = parameters["Parameters"][0].get("KeyId", "")
        _, partition, _, _, account, _ = body["RoleArn"].split(":", 5)
        arn = f"arn:{partition}:ssm:{region}:{account}:parameter/{name.lstrip('/')}"
        return "ssm:GetParameter", arn, key
    try:
        found = aws.client("secretsmanager", region).describe_secret(SecretId=reference.name)
    except ClientError as failure:
        if aws.code(failure) == "ResourceNotFoundException":
            raise LookupError from failure
        raise
    if "DeletedDate" in found:
        raise LookupError
    return "secretsmanager:GetSecretValue", found["ARN"], found.get("KmsKeyId", "")


def denied(job: Job, body: dict[str, Any], needs: Needs, service: str = "s3") -> Iterator[Finding]:
    """A finding for each action that IAM's simulation denies the role.

    An explicit denial is an error, since no other policy overrides it
    (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html).
    IAM does not report which keys a service control policy misses (API_EvaluationResult), so its
    denial is a warning.

    Args:
        job: of job.toml.
        body: the request, with the role.
        needs: what the role has to do.
        service: that uses the KMS keys for the job.
    """
    iam, arn = aws.client("iam", job.region), body["RoleArn"]
    for action, resources in needs.items():
        if not resources:
            continue
        denials = [
            answer
            for answer in simulated(iam, arn, action, resources, f"{service}.{job.region}")
            if answer["EvalResourceDecision"] != "allowed"
        ]
        if not denials:
            continue
        where = ", ".join(answer["EvalResourceName"] for answer in denials)
        key, name = f"role.{action}", arn.rpartition("/")[2]
        problem = f"{name} may not {action} on {where}, so the job cannot {PURPOSES[action]}"
        decisions = {answer["EvalResourceDecision"] for answer in denials}
        allow = "allow it" if action == "kms:CreateGrant" else ALLOW
        unknown = {name for answer in denials for name in answer.get("MissingContextValues", [])}
        if any(map(is_limited, denials)):
            limit = "a service control policy or the permissions boundary denies it"
            yield warning(key, f"{problem}: {limit}", "ask the account's administrators")
        elif unknown:
            condition = f"unless a condition on {', '.join(sorted(unknown))} holds"
            yield warning(key, f"{problem}, {condition}", "check that this job fulfils it")
        elif action == WRITING or "explicitDeny" in decisions:
            yield error(key, problem, allow)
        else:
            yield warning(key, problem, f"{allow}, unless the resource's own policy does")


def is_limited(answer: dict[str, Any]) -> bool:
    """Whether a service control policy or a permissions boundary denies the action."""
    by_organisation = answer.get("OrganizationsDecisionDetail", {})
    by_boundary = answer.get("PermissionsBoundaryDecisionDetail", {})
    return not (
        by_organisation.get("AllowedByOrganizations", True)
        and by_boundary.get("AllowedByPermissionsBoundary", True)
    )


def simulated(
    iam: Any, arn: str, action: str, resources: list[str], service: str
) -> Iterator[dict[str, Any]]:
    """IAM's answer for each resource: EvaluationResult and ResourceSpecificResult in one."""
    question = {
        "PolicySourceArn": arn,
        "ActionNames": [action],
        "ResourceArns": list(dict.fromkeys(resources)),
        "ContextEntries": context_of_call(arn, action, service),
    }
    for page in iam.get_paginator("simulate_principal_policy").paginate(**question):
        for result in page["EvaluationResults"]:
            whole = {**result, "EvalResourceDecision": result["EvalDecision"]}
            for one in result.get("ResourceSpecificResults") or [whole]:
                yield {**whole, **one}


def context_of_call(arn: str, action: str, service: str) -> list[dict[str, Any]]:
    """Keys of the context that each call has, and that policies often use.

    The service calls KMS for the job, as s3.us-east-1.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
    https://docs.aws.amazon.com/kms/latest/developerguide/conditions-kms.html
    """
    region = service.partition(".")[2]
    values: dict[str, str | bool] = {
        "aws:PrincipalAccount": arn.split(":")[4],
        "aws:PrincipalArn": arn,
        "aws:RequestedRegion": region,
        "aws:SecureTransport": True,
        "aws:ViaAWSService": action.startswith("kms:"),
    }
    if action in ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"):
        values["kms:ViaService"] = f"{service}.{aws.dns_suffix(region)}"
    return [
        {
            "ContextKeyName": key,
            "ContextKeyType": "boolean" if isinstance(value, bool) else "string",
            "ContextKeyValues": [str(value).lower() if isinstance(value, bool) else value],
        }
        for key, value in values.items()
    ]
