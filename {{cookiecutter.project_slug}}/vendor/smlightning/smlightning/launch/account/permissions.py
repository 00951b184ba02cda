"""Whether the role of a job is one, and whether it and the caller may do what the job needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from smlightning import hub
from smlightning.launch.account.context import OUTPUT, Context
from smlightning.launch.findings import Finding, error, warning

SAGEMAKER = "sagemaker.amazonaws.com"


@dataclass(frozen=True)
class Need:
    """An action, and the resources that it is done on."""

    action: str
    resources: list[str]


def permissions(context: Context) -> Iterator[Finding]:
    """The role exists and trusts SageMaker, and it and the caller may do what the job needs."""
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
        yield error("role", f"there is no {context.role}", f"{name} is {role['Arn']}")
        return
    if SAGEMAKER not in trusted_services(role):
        problem = f"{name} does not trust SageMaker"
        yield error("role", problem, f"let {SAGEMAKER} do sts:AssumeRole on it")
    arn = role["Arn"]
    yield from missing_permissions(
        iam, "caller", caller_arn(context, iam, arn), caller_needs(context, arn)
    )
    yield from missing_permissions(iam, "role", arn, role_needs(context, arn))


def role_problems(context: Context) -> Iterator[Finding]:
    """What is wrong with the role before AWS is asked for it."""
    kind, caller = context.caller
    if not context.role:
        # An empty role means the caller's own, as it is in Studio.
        if kind == "assumed-role" and not caller.startswith("AWSReservedSSO_"):
            return
        whose = "single sign-on's" if kind == "assumed-role" else f"a {kind}'s"
        yield error(
            "role",
            f"empty, and these credentials are {whose}, not an execution role's as they are "
            "in Studio",
            f"set it to the ARN of a role that trusts {SAGEMAKER}",
        )
        return
    account = context.role.split(":")[4]
    if account != context.account:
        problem = f"it is in account {account}, the credentials in {context.account}"
        yield error("role", problem, "take a role of this account, or AWS_PROFILE of the other")


def trusted_services(role: dict[str, Any]) -> list[str]:
    """The services that may take the role on."""
    services: list[str] = []
    for statement in as_list(role["AssumeRolePolicyDocument"]["Statement"]):
        principal = statement.get("Principal")
        if statement["Effect"] != "Allow" or not isinstance(principal, dict):
            continue
        actions = as_list(statement.get("Action", []))
        if any(fnmatch("sts:assumerole", action.lower()) for action in actions):
            services += as_list(principal.get("Service", []))
    return services


def caller_arn(context: Context, iam: Any, role_arn: str) -> str:
    """The ARN whose policies decide what the caller may do; empty: root may do everything."""
    kind, name = context.caller
    if kind == "user":
        return context.identity["Arn"]
    if kind != "assumed-role":
        return ""
    if name == role_arn.rpartition("/")[2]:
        return role_arn
    return str(iam.get_role(RoleName=name)["Role"]["Arn"])


def caller_needs(context: Context, role_arn: str) -> list[Need]:
    """What sending the job takes. A policy may tell of the job's name."""
    action, kind, key = "CreateTrainingJob", "training-job", "TrainingJobName"
    if context.tuning:
        action, kind = "CreateHyperParameterTuningJob", "hyper-parameter-tuning-job"
        key = "HyperParameterTuningJobName"
    name = context.request.get(key, "*")
    job = resource(context, role_arn, "sagemaker", f"{kind}/{name}")
    code = [uri for key, uri in objects(context, role_arn).items() if key == context.output_key]
    needs = [
        Need(f"sagemaker:{action}", [job]),
        Need("iam:PassRole", [role_arn]),
        Need("s3:PutObject", code),
    ]
    if context.job.tags:
        needs.append(Need("sagemaker:AddTags", [job]))
    return needs


def role_needs(context: Context, role_arn: str) -> list[Need]:
    """What the job itself does: read and write S3, log, and read a secret."""
    folders = objects(context, role_arn)
    reads = [uri for key, uri in folders.items() if key not in ("bucket", OUTPUT)]
    writes = [uri for key, uri in folders.items() if not key.startswith("channels.")]
    log = resource(context, role_arn, "logs", "log-group:/aws/sagemaker/*")
    needs = [
        Need("s3:GetObject", reads),
        Need("s3:PutObject", writes),
        Need("logs:PutLogEvents", [log]),
    ]
    if context.job.hub_token_secret:
        needs.append(secret_need(context, role_arn))
    if ":mlflow-tracking-server/" in context.job.mlflow:
        needs.append(Need("sagemaker-mlflow:LogBatch", [context.job.mlflow]))
    return needs


def secret_need(context: Context, role_arn: str) -> Need:
    """Reading the hub's token: of Parameter Store, or of Secrets Manager by ARN or name."""
    secret = context.job.hub_token_secret
    if secret.startswith(hub.STORE):
        parameter = secret.removeprefix(hub.STORE).lstrip("/")
        return Need(
            "ssm:GetParameter", [resource(context, role_arn, "ssm", f"parameter/{parameter}")]
        )
    if not secret.startswith("arn:"):  # AWS adds six letters to the name
        secret = resource(context, role_arn, "secretsmanager", f"secret:{secret}-*")
    return Need("secretsmanager:GetSecretValue", [secret])


def resource(context: Context, role_arn: str, service: str, name: str) -> str:
    """The ARN of a resource of this account and region."""
    return f"{partition(role_arn)}:{service}:{context.job.region}:{context.account}:{name}"


def objects(context: Context, role_arn: str) -> dict[str, str]:
    """Key of job.toml → ARN of everything in the folder that it names."""
    start = f"{partition(role_arn)}:s3:::"
    return {
        key: f"{start}{uri.removeprefix('s3://').rstrip('/')}/*"
        for key, uri in context.addresses().items()
    }


def partition(arn: str) -> str:
    """The beginning of ARNs: arn:aws, arn:aws-cn."""
    return arn.split(":iam::")[0]


def missing_permissions(iam: Any, who: str, arn: str, needs: list[Need]) -> Iterator[Finding]:
    """The needs that a user or role may not do, by IAM's own simulation."""
    if not arn:
        return
    for need in needs:
        if not need.resources or allowed(iam, arn, need):
            continue
        name, resources = arn.rpartition("/")[2], ", ".join(need.resources)
        key, problem = f"{who}.{need.action}", f"{name} may not {need.action} on {resources}"
        if who == "caller" and not need.action.startswith("s3:"):
            yield error(key, problem, "ask for that permission")
        else:  # a bucket's own policy, which is not simulated, may allow it
            yield warning(key, problem, "add it, unless a bucket's policy allows it")


def allowed(iam: Any, arn: str, need: Need) -> bool:
    """Whether IAM's own simulation lets the user or role do this on all of the resources."""
    context = []
    if need.action == "iam:PassRole":
        context.append(
            {
                "ContextKeyName": "iam:PassedToService",
                "ContextKeyType": "string",
                "ContextKeyValues": [SAGEMAKER],
            }
        )
    answer = iam.simulate_principal_policy(
        PolicySourceArn=arn,
        ActionNames=[need.action],
        ResourceArns=need.resources,
        ContextEntries=context,
    )
    return all(result["EvalDecision"] == "allowed" for result in answer["EvaluationResults"])


def as_list(value: Any) -> list[Any]:
    """IAM's documents hold a list, or its only item."""
    return value if isinstance(value, list) else [value]
