"""Checks that the role exists, and that role and caller have the permissions for a job."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from smlightning_sagemaker.findings import Finding, error, skipped, warning
from smlightning_sagemaker.preflight.account.context import Context
from smlightning_sagemaker.preflight.account.table import (
    CALLER,
    ROLE,
    SAGEMAKER,
    Condition,
    Facts,
    Need,
    context_of_request,
    needs,
)


def permissions(context: Context) -> Iterator[Finding]:
    """The role exists and trusts SageMaker, and it and the caller have the job's permissions."""
    problems = list(role_problems(context))
    if problems:
        yield from problems
        return
    iam = context.client("iam")
    name = context.role.rpartition("/")[2] or context.caller[1]
    try:
        role = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        problem = f"{name} does not exist in account {context.account}"
        yield error("role", problem, "create it, or correct the name")
        return
    # A path, such as service-role/, is part of an ARN.
    if context.job.role.startswith("arn:") and context.role != role["Arn"]:
        yield error("role", f"{context.role} does not exist", f"write {role['Arn']}")
        return
    if SAGEMAKER not in trusted_services(role):
        problem = f"{name} does not trust SageMaker"
        yield error("role", problem, f"allow sts:AssumeRole to {SAGEMAKER} in its trust policy")
    arn = role["Arn"]
    facts = replace(facts_of(context, arn), key_arns=key_arns(context))
    if context.caller[0] == "federated-user" and not context.sender:
        problem = "AWS does not show the permissions of a federated user"
        yield skipped(CALLER, problem, "compare its permissions with `account --policy caller`")
    try:
        caller = caller_arn(context, iam)
    except iam.exceptions.NoSuchEntityException:
        problem = f"{context.sender or context.caller[1]} does not exist here"
        yield error("--sender", problem, "give a role of this account")
        caller = ""
    values = context_of_request(facts.request)
    yield from missing_permissions(iam, CALLER, caller, facts, values)
    yield from missing_permissions(iam, ROLE, arn, facts, values)


def role_problems(context: Context) -> Iterator[Finding]:
    """Problems of the role that need no call to AWS."""
    kind, caller = context.caller
    if not context.role:
        # An empty role means the caller's own, as it is in Studio.
        if kind == "assumed-role" and not caller.startswith("AWSReservedSSO_"):
            return
        whose = "single sign-on's" if kind == "assumed-role" else f"a {kind}'s"
        yield error(
            "role",
            f"empty means Studio's execution role, but these credentials are {whose}",
            f"set it to the ARN of a role that trusts {SAGEMAKER}",
        )
        return
    account = context.role.split(":")[4]
    if account != context.account:
        problem = f"the role is in account {account}, the credentials in {context.account}"
        yield error("role", problem, "use a role of this account, or a profile of the other")


def trusted_services(role: dict[str, Any]) -> list[str]:
    """The services that may assume the role."""
    services: list[str] = []
    for statement in as_list(role["AssumeRolePolicyDocument"]["Statement"]):
        principal = statement.get("Principal")
        if statement["Effect"] != "Allow" or not isinstance(principal, dict):
            continue
        actions = as_list(statement.get("Action", []))
        if any(fnmatch("sts:assumerole", action.lower()) for action in actions):
            services += as_list(principal.get("Service", []))
    return services


def caller_arn(context: Context, iam: Any) -> str:
    """The ARN whose policies decide what the caller may do; empty for root and federated users."""
    kind, name = context.caller
    if context.sender:
        name = context.sender.rpartition("/")[2]
    elif kind == "user":
        return context.identity["Arn"]
    elif kind != "assumed-role":
        return ""
    return str(iam.get_role(RoleName=name)["Role"]["Arn"])


def key_arns(context: Context) -> dict[str, str]:
    """Alias in the request → ARN of its KMS key; `named` reports the others."""
    from botocore.exceptions import ClientError

    output, resources = context.request["OutputDataConfig"], context.request["ResourceConfig"]
    arns = {}
    for key in (output.get("KmsKeyId", ""), resources.get("VolumeKmsKeyId", "")):
        if "alias/" not in key:
            continue
        try:
            arns[key] = context.client("kms").describe_key(KeyId=key)["KeyMetadata"]["Arn"]
        except ClientError:
            continue
    return arns


def facts_of(context: Context, role_arn: str) -> Facts:
    """The facts for the table of permissions about a job that is about to be sent."""
    return Facts(
        job=context.job,
        request=context.request,
        partition=role_arn.split(":")[1],
        account=context.account,
        role=role_arn,
        job_name=str(context.request.get("TrainingJobName", "*")),
    )


@dataclass(frozen=True)
class Answer:
    """The simulation's answer about a need on one resource."""

    allowed: bool
    missing: tuple[str, ...]  # keys of the context that a policy uses and that are not known
    limit: str  # of LIMITS, if it denies the action; empty: the identity's own policies decide


# Policies that may deny a call that a user's or role's own allow, and whom to ask. The denial is a
# warning: IAM does not report which keys these policies miss (API_EvaluationResult).
LIMITS = {
    "SCP": (
        "a service control policy (SCP) of the organisation",
        "ask the organisation's administrators whether it allows this job",
    ),
    "boundary": (
        "the permissions boundary",
        "ask the account's administrators whether it allows this job",
    ),
}


def missing_permissions(
    iam: Any, who: str, arn: str, facts: Facts, values: dict[str, Any]
) -> Iterator[Finding]:
    """The permissions that a user or role lacks, by IAM's own simulation.

    A permission that depends on an unknown key of the context is a warning.

    Args:
        iam: boto3's client.
        who: of the table.
        arn: of the user or role; empty: nothing is checked.
        facts: for the table.
        values: key of IAM's context → value.
    """
    if not arn:
        return
    name = arn.rpartition("/")[2]
    wanted = needs(facts, who)
    answers = simulated(iam, arn, wanted, values, facts.job.region)
    denied_by: dict[str, list[str]] = {}
    for need in wanted:
        denied = {
            resource: answer
            for resource in need.resources
            if not (answer := answers[need.action, resource]).allowed
        }
        if not denied:
            continue
        unknown = {key for answer in denied.values() for key in answer.missing}
        limit = next((answer.limit for answer in denied.values() if answer.limit), "")
        key = f"{who}.{need.action}"
        problem = f"{name} may not {need.action} on {', '.join(denied)}"
        if limit:
            denied_by.setdefault(limit, []).append(need.action)
        elif unknown:
            keys = ", ".join(sorted(unknown))
            problem = f"{name} may {need.action} only under a condition on {keys}, unknown here"
            yield warning(key, problem, "check that this job fulfils the condition")
        elif who == CALLER and need.action in REQUIRED:
            yield error(key, problem, "ask for that permission")
        else:  # a bucket's or a key's own policy, which is not simulated, may allow it
            yield warning(key, problem, "allow it, unless the resource's own policy does")
    for limit, actions in denied_by.items():
        policy, cure = LIMITS[limit]
        problem = f"{policy} denies {name} {', '.join(actions)} in {facts.job.region}"
        yield warning(f"{who}.{limit}", problem, cure)


# AWS starts no job without these, and no policy of a resource can grant them.
REQUIRED = (
    "sagemaker:CreateTrainingJob",
    "sagemaker:AddTags",
    "iam:PassRole",
)


def simulated(
    iam: Any, arn: str, wanted: list[Need], context: dict[str, Any], region: str
) -> dict[tuple[str, str], Answer]:
    """(Action, resource) → the answer of IAM's own simulation.

    One call serves all actions on the same ARNs under the same condition.
    """
    actions_on: dict[tuple[tuple[str, ...], Condition], list[str]] = {}
    for need in wanted:
        actions_on.setdefault((need.resources, need.condition), []).append(need.action)
    pages = iam.get_paginator("simulate_principal_policy")
    answers: dict[tuple[str, str], Answer] = {}
    for (resources, condition), actions in actions_on.items():
        values = context | dict(condition) | context_of_call(arn, resources[0], region)
        question = {
            "PolicySourceArn": arn,
            "ActionNames": actions,
            "ResourceArns": list(resources),
            "ContextEntries": context_entries(values),
        }
        results = [
            each for page in pages.paginate(**question) for each in page["EvaluationResults"]
        ]
        for result in results:
            action = result["EvalActionName"]
            # The result is for all resources together; for "*" there is no other.
            answers.update({(action, resource): answer_of(result) for resource in resources})
            for one in result.get("ResourceSpecificResults", []):
                answers[action, one["EvalResourceName"]] = answer_of(result | one)
    return answers


def answer_of(result: dict[str, Any]) -> Answer:
    """The decision of an EvaluationResult; of one resource, if its result was merged in."""
    decision = result.get("EvalResourceDecision", result["EvalDecision"])
    by_boundary = result.get("PermissionsBoundaryDecisionDetail", {})
    by_organisation = result.get("OrganizationsDecisionDetail", {})
    limit = "" if by_boundary.get("AllowedByPermissionsBoundary", True) else "boundary"
    limit = limit if by_organisation.get("AllowedByOrganizations", True) else "SCP"
    return Answer(decision == "allowed", tuple(result.get("MissingContextValues", [])), limit)


def context_of_call(arn: str, resource: str, region: str) -> dict[str, Any]:
    """The keys of the context that each call has, and that policies of an organisation use.

    See IAM/latest/UserGuide/reference_policies_condition-keys.html.

    Args:
        arn: of the user or role that calls.
        resource: its ARN, or "*".
        region: of the job; the call goes there unless the ARN has another.
    """
    _, _, service, place, *_ = [*resource.split(":"), "", "", ""]
    return {
        "aws:PrincipalAccount": arn.split(":")[4],
        "aws:PrincipalArn": arn,
        "aws:RequestedRegion": place or region,
        "aws:SecureTransport": True,
        "aws:ViaAWSService": service == "kms",  # S3 and SageMaker call it for the job
    }


TYPES = {list: "stringList", bool: "boolean", int: "numeric", str: "string"}


def context_entries(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The context as SimulatePrincipalPolicy expects it."""
    return [
        {
            "ContextKeyName": key,
            "ContextKeyType": TYPES[type(value)],
            "ContextKeyValues": [
                str(item).lower() if isinstance(item, bool) else str(item)
                for item in as_list(value)
            ],
        }
        for key, value in values.items()
    ]


def as_list(value: Any) -> list[Any]:
    """A list, or the only item that IAM's documents may have in its place."""
    return value if isinstance(value, list) else [value]
