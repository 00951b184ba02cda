"""IAM policies for a job, and a CloudFormation file with its roles and bucket.

Both come from the table of permissions (table.py), so that they allow exactly what preflight
checks. Only `account_of` asks AWS.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Job, JobError
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.preflight.account.table import (
    CALLER,
    LOOKER,
    ROLE,
    Condition,
    Facts,
    needs,
)
from smlightning_sagemaker.preflight.secrets import texts
from smlightning_sagemaker.project import Project

ACCOUNT, PARTITION = "${AWS::AccountId}", "${AWS::Partition}"  # CloudFormation's own words
GITHUB = "token.actions.githubusercontent.com"
LONGEST_ROLE_NAME = 64
FILE = Path(__file__).with_name("cloudformation.yaml")
# Its parts, by section, that GitHub's workflows need, and those that a bucket needs.
GITHUB_PARTS = {
    "Parameters": ("ExistingProvider", "Environment", "Branch"),
    "Conditions": ("NoProvider",),
    "Resources": ("GitHubProvider", "GitHubPreflightRole", "GitHubRole"),
    "Outputs": ("GitHubPreflightRole", "GitHubRole"),
}
BUCKET_PARTS = {
    "Parameters": ("BucketKey",),
    "Conditions": ("HasBucketKey",),
    "Resources": ("Bucket", "BucketPolicy", "BucketKeyPolicy"),
}
NOTIFY_PARTS = {"Resources": ("NotifyTopic", "NotifyTopicPolicy", "NotifyRule")}
WITHOUT_TAGS = (
    "AWS::S3::BucketPolicy",
    "AWS::IAM::Policy",
    "AWS::SNS::TopicPolicy",
)  # types that AWS has no tags for
WITH_ADDRESSES = ("InputDataConfig", "CheckpointConfig", "OutputDataConfig")
# IAM reads these as a pattern or a variable in the ARN of a policy.
PATTERN = re.compile(r"[*?]|\$\{")
# Keys of job.toml and members of [request] whose texts become ARNs.
NAMING_KEYS = (
    "name",
    "role",
    "bucket",
    "image",
    "checkpoint_s3",
    "hub_token_secret",
    "channels",
    "secrets",
)
NAMING_MEMBERS = (
    "OutputDataConfig",
    "ResourceConfig",
    "VpcConfig",
    "CheckpointConfig",
    "ProfilerConfig",
    "DebugHookConfig",
    "TensorBoardOutputConfig",
)
# A key that has several values; the others have one.
OPERATORS = {"kms:ResourceAliases": "ForAnyValue:StringEquals"}


def facts(
    job: Job,
    project: Project,
    *,
    account: str = ACCOUNT,
    partition: str = PARTITION,
    path: str = "",
    senders: tuple[str, ...] = (),
) -> Facts:
    """The facts for the table, in an account that may be a placeholder.

    Args:
        job: of job.toml.
        project: its src/options.py declares the metrics.
        account: its number.
        partition: of AWS's regions.
        path: of the execution role; empty: as job.toml has it.
        senders: ARNs of the users and roles that send the job.

    Raises:
        UserError: no request can be built from this job, or a name would be a pattern in a policy.
    """
    check_patterns(job)
    own_path, name = role_name(job)
    role = f"arn:{partition}:iam::{account}:role{path or own_path}{name}"
    bucket = job.bucket or f"sagemaker-{job.region}-{account}"
    pattern = f"{job.name}-*"
    destination = Destination(role, bucket)
    return Facts(
        job=job,
        request=request.training_request(job, project, destination, pattern),
        partition=partition,
        account=account,
        role=role,
        job_name=pattern,
        senders=senders,
    )


def check_patterns(job: Job) -> None:
    """Reject names of resources that IAM would read as patterns, which may match others, too.

    Raises:
        JobError: job.toml has some.
    """
    named: dict[str, Any] = {key: getattr(job, key) for key in NAMING_KEYS}
    named["network"] = job.network.model_dump()
    variable = requirements.CODEARTIFACT
    repository = {variable: job.environment.get(variable, "")}
    members = {name: job.request[name] for name in NAMING_MEMBERS if name in job.request}
    problems = [
        error(key, f'"{text}" would be a pattern in a policy', "give the name of one resource")
        for key, text in texts({**named, "environment": repository, "request": members})
        if PATTERN.search(text)
    ]
    if problems:
        raise JobError(problems)


def sender_arn(sender: str, account: str, partition: str) -> str:
    """The ARN of a sender that is given by a role's name or an ARN; empty: each user itself."""
    if sender.startswith("arn:"):
        return sender
    kind = f"role/{sender}" if sender else "user/${aws:username}"
    return f"arn:{partition}:iam::{account}:{kind}"


def not_granted(given: Facts) -> list[Finding]:
    """Warnings about permissions that a job may need and its policies cannot contain."""
    findings = []
    for channel in given.request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        if str(source.get("S3DataType", "")).endswith("ManifestFile"):
            key = f"channels.{channel['ChannelName']}"
            problem = "the role may read the manifest, but not the objects that it lists"
            cure = "allow s3:GetObject and s3:ListBucket on these in a policy of your own"
            findings.append(warning(key, problem, cure))
    body = {name: given.request.get(name, {}) for name in WITH_ADDRESSES}
    for key, text in texts(body):
        if text.startswith("s3://") and not given.objects(text):
            problem = f"the policies do not allow {text}, of S3 Express or an access point"
            cure = "allow it in a policy of your own"
            findings.append(warning(f"request.{key}", problem, cure))
    return findings


def check_options(who: str | None, sender: str) -> None:
    """Reject ``--sender`` if the requested policy does not use it.

    Args:
        who: the policy is for; None: the whole file is requested.
        sender: whose permissions preflight checks; empty: nobody's.

    Raises:
        UserError: the option belongs to another policy.
    """
    if sender and who != CALLER:
        raise UserError("this policy does not use --sender", f"add --policy {CALLER}")


def role_name(job: Job) -> tuple[str, str]:
    """The execution role's path, which has a slash at both ends, and its name."""
    given = job.role.partition(":role/")[2] if job.role.startswith("arn:") else job.role
    path, _, name = given.rpartition("/")
    return f"/{path}/" if path else "/", name or f"{job.name}-training"[:LONGEST_ROLE_NAME]


def policy(given: Facts, who: str) -> dict[str, Any]:
    """The policy of one of the table's; actions on the same resources are one statement."""
    statements: list[dict[str, Any]] = []
    actions_on: dict[tuple[tuple[str, ...], Condition], set[str]] = {}
    for need in [*needs(given, who), *(needs(given, LOOKER) if who == CALLER else [])]:
        actions_on.setdefault((need.resources, need.condition), set()).add(need.action)
    for (resources, condition), actions in actions_on.items():
        statement: dict[str, Any] = {
            "Effect": "Allow",
            "Action": sorted(actions),
            "Resource": list(resources),
        }
        if condition:
            statement["Condition"] = {
                OPERATORS.get(key, "StringEquals"): {key: value} for key, value in condition
            }
        statements.append(statement)
    return {"Version": "2012-10-17", "Statement": statements}


def account_of(job: Job) -> str:
    """The account that a policy is for: the role's, else the credentials' own.

    Raises:
        UserError: neither has one.
    """
    if job.role.startswith("arn:"):
        return job.role.split(":")[4]
    with aws.errors(
        "a policy needs the account's number, and neither role nor credentials have one",
        "set role in job.toml to an ARN",
    ):
        identity = aws.client("sts", job.region).get_caller_identity()
    return str(identity["Account"])


def cloudformation(
    job: Job,
    project: Project,
    *,
    github: str = "",
    without_ids: bool = False,
    existing_bucket: bool = False,
    notify: str = "",
) -> dict[str, Any]:
    """cloudformation.yaml for a job: its role and bucket, and two roles for GitHub's workflows.

    Args:
        job: of job.toml.
        project: whose src/options.py declares the metrics.
        github: OWNER@ID/REPOSITORY@ID; empty: no such roles.
        without_ids: github is OWNER/REPOSITORY, for repositories from before 2026-07-15.
        existing_bucket: create no bucket.
        notify: the address that gets a mail at the end of each job; empty: none.

    Raises:
        UserError: no request can be built from this job, github is not a repository, or notify no
            address.
    """
    import yaml

    path, name = role_name(job)
    sender = f"{job.name}-github"
    sender_arn = f"arn:{PARTITION}:iam::{ACCOUNT}:role${{RolePath}}{sender}"
    senders = (sender_arn,) if github else ()
    given = facts(job, project, path="${RolePath}", senders=senders)
    bucket = aws.s3_location(given.output)[0]
    exists = existing_bucket or not given.objects(given.output)  # it creates ordinary buckets only
    content: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    content["Description"] = f"What training jobs of {job.name} need"
    content["Parameters"]["RolePath"]["Default"] = path
    resources = content["Resources"]
    resources["Bucket"]["Properties"]["BucketName"] = filled(bucket)
    fill_role(resources["TrainingRole"], name, filled_policy(given, ROLE))
    if github:
        subject = github_subject(github, without_ids=without_ids)
        claims = {
            "GitHubPreflightRole": f"{subject}:pull_request",
            "GitHubRole": {"Fn::Sub": f"{subject}:environment:${{Environment}}"},
        }
        for role, claim in claims.items():
            document = resources[role]["Properties"]["AssumeRolePolicyDocument"]
            document["Statement"][0]["Condition"]["StringEquals"][f"{GITHUB}:sub"] = claim
        looking, sending = filled_policy(given, LOOKER), filled_policy(given, CALLER)
        fill_role(resources["GitHubPreflightRole"], f"{sender}-preflight", looking)
        fill_role(resources["GitHubRole"], sender, sending)
    else:
        leave_out(content, GITHUB_PARTS)
        resources["BucketKeyPolicy"]["Properties"]["Roles"].remove({"Ref": "GitHubRole"})
    if notify:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", notify):
            raise UserError(f"--notify {notify} is not an email address", "as in me@example.com")
        resources["NotifyTopic"]["Properties"]["Subscription"][0]["Endpoint"] = notify
        detail = resources["NotifyRule"]["Properties"]["EventPattern"]["detail"]
        detail["TrainingJobName"] = [{"prefix": f"{job.name}-"}]
    else:
        leave_out(content, NOTIFY_PARTS)
    if exists:
        content["Outputs"]["Bucket"]["Value"] = filled(bucket)
        leave_out(content, BUCKET_PARTS)
    for resource in resources.values():
        if job.tags and resource["Type"] not in WITHOUT_TAGS:
            tags = [{"Key": key, "Value": value} for key, value in job.tags.items()]
            resource["Properties"]["Tags"] = tags
    return content


def leave_out(content: dict[str, Any], parts: Mapping[str, Collection[str]]) -> None:
    """Remove parts of the file: section → names."""
    for section, names in parts.items():
        for name in names:
            del content[section][name]


def fill_role(role: dict[str, Any], name: str, policy: dict[str, Any]) -> None:
    """Set the name and the policy of a role."""
    role["Properties"]["RoleName"] = name
    role["Properties"]["Policies"][0]["PolicyDocument"] = policy


def github_subject(github: str, *, without_ids: bool) -> str:
    """The beginning of the subject of a repository's tokens.

    It contains the IDs of owner and repository, which never change or return, unless the
    repository is from before 2026-07-15
    (github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens).

    Raises:
        UserError: it is not a repository, or lacks the IDs.
    """
    name = r"[\w.-]+"
    if re.fullmatch(rf"{name}@\d+/{name}@\d+", github, re.ASCII):
        return f"repo:{github}"
    repository = re.sub(r"@\d+", "", github)
    if not re.fullmatch(rf"{name}/{name}", repository, re.ASCII):
        raise UserError(f"--github {github} is not a repository", "give OWNER@ID/REPOSITORY@ID")
    if without_ids and github == repository:
        return f"repo:{github}"
    printed = r"\(.owner.login)@\(.owner.id)/\(.name)@\(.id)"
    raise UserError(
        f"--github {github} lacks the IDs of owner and repository, which GitHub's tokens contain",
        f"give what this prints: gh api repos/{repository} --jq '\"{printed}\"', or add "
        "--without-ids for a repository from before 2026-07-15 that has not opted in",
    )


def filled_policy(given: Facts, who: str) -> dict[str, Any]:
    """The policy, whose ARNs CloudFormation completes."""
    document = policy(given, who)
    for statement in document["Statement"]:
        statement["Resource"] = [filled(arn) for arn in statement["Resource"]]
    return document


def filled(text: str) -> Any:
    """The text, as an order to CloudFormation to fill it in if it has placeholders."""
    return {"Fn::Sub": text} if "${" in text else text
