"""What a job needs in an account, as policies and as one file of CloudFormation.

Both are made of the table of permissions (table.py), so that they hold what preflight asks for and
no more. Nothing here asks AWS for anything.
"""

import re
from dataclasses import replace
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, deploy_plan, images, request, requirements, tune
from smlightning.launch.account.table import (
    CALLER,
    DEPLOYER,
    ENDPOINT,
    LOOKER,
    ROLE,
    SAGEMAKER,
    Condition,
    Facts,
    needs,
)
from smlightning.launch.findings import Finding, error, warning
from smlightning.launch.job import Job, JobError
from smlightning.launch.preflight.secrets import texts
from smlightning.launch.request import Destination
from smlightning.project import Project

ACCOUNT, PARTITION = "${AWS::AccountId}", "${AWS::Partition}"  # CloudFormation's own words
GITHUB = "token.actions.githubusercontent.com"
LONGEST_ROLE_NAME = 64
KEPT = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
WITHOUT_TAGS = ("AWS::S3::BucketPolicy", "AWS::IAM::Policy")  # types that AWS has no tags for
# What IAM takes for a pattern or a variable in the ARN of a policy.
PATTERN = re.compile(r"[*?]|\$\{")
# Keys of job.toml and members of [request] whose texts become ARNs.
NAMING_KEYS = (
    "name",
    "role",
    "bucket",
    "image",
    "registry",
    "checkpoint_s3",
    "hub_token_secret",
    "mlflow",
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
    image: str = "",
    transform: tuple[str, str] | None = None,
) -> Facts:
    """What the table reads of a job in an account that may be a placeholder.

    Args:
        job: of job.toml.
        project: whose src/options.py names the metrics.
        account: its number.
        partition: of AWS's regions.
        path: of the execution role; empty: as job.toml has it.
        senders: ARNs of who sends the job, and may ask IAM about itself.
        image: that the model answers in; empty: AWS's own.
        transform: S3 addresses of a batch transform's input and output.

    Raises:
        UserError: no request can be built of this job, or a policy would allow more than it names.
    """
    refuse_patterns(job)
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
        inference_image=image,
        transform=transform,
    )


def refuse_patterns(job: Job) -> None:
    """Refuse names of resources that IAM would take for patterns, of resources of others too.

    Raises:
        JobError: job.toml has some.
    """
    named: dict[str, Any] = {key: getattr(job, key) for key in NAMING_KEYS}
    named["network"] = job.network.model_dump()
    variable = requirements.CODEARTIFACT
    repository = {variable: job.environment.get(variable, "")}
    members = {name: job.request[name] for name in NAMING_MEMBERS if name in job.request}
    problems = [
        error(key, f'"{text}" is a pattern in a policy, of more than it names', "name one resource")
        for key, text in texts({**named, "environment": repository, "request": members})
        if PATTERN.search(text)
    ]
    if problems:
        raise JobError(problems)


def sender_arn(sender: str, account: str, partition: str) -> str:
    """Who sends a job, of a role's name or a role's or user's ARN; empty: any user, itself."""
    if sender.startswith("arn:"):
        return sender
    kind = f"role/{sender}" if sender else "user/${aws:username}"
    return f"arn:{partition}:iam::{account}:{kind}"


def not_granted(given: Facts) -> list[Finding]:
    """What a job may need that its policies cannot hold."""
    findings = []
    for channel in given.request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        if str(source.get("S3DataType", "")).endswith("ManifestFile"):
            key = f"channels.{channel['ChannelName']}"
            problem = "the role may read the manifest, and none of the objects that it lists"
            cure = "allow s3:GetObject and s3:ListBucket on these in a policy of your own"
            findings.append(warning(key, problem, cure))
    return findings


def refuse_options(
    who: str | None, sender: str, image: str, transform: tuple[str, str] | None
) -> None:
    """Refuse options that the policy asked for cannot hold.

    Args:
        who: the policy is for; None: no policy alone.
        sender: whom preflight asks IAM about; empty: nobody.
        image: that the model answers in; empty: AWS's own.
        transform: S3 addresses of a batch transform's input and output.

    Raises:
        UserError: an option belongs to another policy, or its value is of no use to one.
    """
    if sender and who not in (CALLER, DEPLOYER):
        raise UserError(
            "--sender is read for who sends or deploys alone",
            "add --policy caller or --policy deployer",
        )
    if image and who != ENDPOINT:
        raise UserError("--image is read by the model's role alone", "add --policy endpoint")
    if image and not images.ECR.match(image):
        raise UserError(
            f"--image {image} is no address in ECR, where a model's image has to be",
            "as in 123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        )
    if transform and who not in (DEPLOYER, ENDPOINT):
        raise UserError(
            "--transform concerns who deploys, and the model's role",
            "add --policy deployer or --policy endpoint",
        )
    deploy_plan.refuse_transform(transform)


def role_name(job: Job) -> tuple[str, str]:
    """The execution role's path, which has a slash at both ends, and its name."""
    given = job.role.partition(":role/")[2] if job.role.startswith("arn:") else job.role
    path, _, name = given.rpartition("/")
    return f"/{path}/" if path else "/", name or f"{job.name}-training"[:LONGEST_ROLE_NAME]


def policy(given: Facts, who: str) -> dict[str, Any]:
    """The policy of one of the table's; actions on the same resources are one statement."""
    statements: list[dict[str, Any]] = []
    actions_on: dict[tuple[tuple[str, ...], Condition], set[str]] = {}
    for kind in (given, search(given)) if given.job.tune.ranges else (given,):
        for need in [*needs(kind, who), *(needs(kind, LOOKER) if who == CALLER else [])]:
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


def search(given: Facts) -> Facts:
    """What the table reads of `tune`, whose names hold less of the job's."""
    stamp = len("-000000-000000")
    return replace(given, tuning=True, job_name=f"{tune.job_name(given.job)[:-stamp]}-*")


def account_of(job: Job) -> str:
    """The account that a policy is for: the role's, else the credentials' own.

    Raises:
        UserError: neither says it.
    """
    if job.role.startswith("arn:"):
        return job.role.split(":")[4]
    with aws.errors(
        "a policy names the account, and neither role nor credentials do",
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
) -> dict[str, Any]:
    """A template: execution role, bucket, and two roles that GitHub's workflows take on.

    Args:
        job: of job.toml.
        project: whose src/options.py names the metrics.
        github: OWNER@ID/REPOSITORY@ID; empty: no such roles.
        without_ids: github is OWNER/REPOSITORY, as GitHub has it of repositories from before
            2026-07-15.
        existing_bucket: no bucket is created, as where the bucket is an organisation's, which the
            SDK's configuration file names.

    Raises:
        UserError: no request can be built of this job, or github is no repository.
    """
    path, name = role_name(job)
    role_arn = f"arn:{PARTITION}:iam::{ACCOUNT}:role${{RolePath}}"
    sender = f"{job.name}-github"
    given = facts(
        job, project, path="${RolePath}", senders=(f"{role_arn}{sender}",) if github else ()
    )
    address = given.request["OutputDataConfig"]["S3OutputPath"]
    bucket = aws.s3_location(address)[0]
    exists = existing_bucket or not given.location(address).bucket.endswith(f":::{bucket}")
    parameters = {
        "RolePath": parameter("Path of the roles", path, AllowedPattern="/|/[!-~]+/"),
        "PermissionsBoundary": parameter("ARN of the roles' permissions boundary; empty: none"),
    }
    conditions: dict[str, Any] = {"HasBoundary": is_given("PermissionsBoundary")}
    resources: dict[str, Any] = {}
    outputs = {
        "Role": {"Description": "role in job.toml", "Value": attribute("TrainingRole", "Arn")},
        "Bucket": {
            "Description": "bucket in job.toml",
            "Value": filled(bucket) if exists else {"Ref": "Bucket"},
        },
    }
    if not exists:
        parameters["BucketKey"] = parameter(
            "ARN of the KMS key that encrypts the bucket by default; empty: S3's own",
            AllowedPattern="|arn:[^:]+:kms:[^:]+:[0-9]{12}:key/.+",
        )
        conditions["HasBucketKey"] = is_given("BucketKey")
        resources |= private_bucket(bucket)
    from_sagemaker = trust(
        {"Service": SAGEMAKER},
        "sts:AssumeRole",
        {"StringEquals": {"aws:SourceAccount": filled(ACCOUNT)}},
    )
    training = filled_policy(given, ROLE)
    resources["TrainingRole"] = role(name, from_sagemaker, "training", training)
    if github:
        subject = github_subject(github, without_ids=without_ids)
        sending = filled_policy(given, CALLER)
        looking = filled_policy(given, LOOKER)
        resources |= github_resources(sender, subject, sending, looking)
        outputs |= GITHUB_OUTPUTS
        parameters |= GITHUB_PARAMETERS
        conditions["NoProvider"] = {"Fn::Equals": [{"Ref": "ExistingProvider"}, ""]}
    if not exists:
        users = {"TrainingRole", "GitHubRole"} & resources.keys()
        resources["BucketKeyPolicy"] = use_of_bucket_key(sorted(users))
    for resource in resources.values():
        if job.tags and resource["Type"] not in WITHOUT_TAGS:
            tags = [{"Key": key, "Value": value} for key, value in job.tags.items()]
            resource["Properties"]["Tags"] = tags
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"What training jobs of {job.name} need",
        "Parameters": parameters,
        "Conditions": conditions,
        "Resources": resources,
        "Outputs": outputs,
    }


def parameter(description: str, default: str = "", **more: str) -> dict[str, str]:
    return {"Type": "String", "Default": default, "Description": description, **more}


def is_given(name: str) -> dict[str, Any]:
    """The condition that a parameter is not empty."""
    return {"Fn::Not": [{"Fn::Equals": [{"Ref": name}, ""]}]}


def role(
    name: str, trusted: dict[str, Any], policy_name: str, document: dict[str, Any]
) -> dict[str, Any]:
    """A role with one policy, below the path and the boundary of the template's parameters."""
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "RoleName": name,
            "Path": {"Ref": "RolePath"},
            "PermissionsBoundary": optional("HasBoundary", {"Ref": "PermissionsBoundary"}),
            "AssumeRolePolicyDocument": trusted,
            "Policies": [{"PolicyName": policy_name, "PolicyDocument": document}],
        },
    }


def optional(condition: str, value: Any) -> dict[str, Any]:
    return {"Fn::If": [condition, value, {"Ref": "AWS::NoValue"}]}


def private_bucket(name: str) -> dict[str, Any]:
    """A bucket that outlives its stack, since it holds models, and takes no request without TLS."""
    by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": {"Ref": "BucketKey"}}
    encrypted = {"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": by_key}
    by_s3 = {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    arn = attribute("Bucket", "Arn")
    without_tls = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, {"Fn::Sub": "${Bucket.Arn}/*"}],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return {
        "Bucket": {
            "Type": "AWS::S3::Bucket",
            **KEPT,
            "Properties": {
                "BucketName": filled(name),
                "BucketEncryption": {
                    "ServerSideEncryptionConfiguration": [
                        {"Fn::If": ["HasBucketKey", encrypted, by_s3]}
                    ]
                },
                "PublicAccessBlockConfiguration": {
                    "BlockPublicAcls": True,
                    "BlockPublicPolicy": True,
                    "IgnorePublicAcls": True,
                    "RestrictPublicBuckets": True,
                },
            },
        },
        "BucketPolicy": {
            "Type": "AWS::S3::BucketPolicy",
            **KEPT,
            "Properties": {
                "Bucket": {"Ref": "Bucket"},
                "PolicyDocument": {"Version": "2012-10-17", "Statement": [without_tls]},
            },
        },
    }


def github_subject(github: str, *, without_ids: bool) -> str:
    """What begins the subject of a repository's tokens.

    It has the IDs of owner and repository, which nobody else gets after a deletion or a change of
    name, unless the repository is from before 2026-07-15
    (github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens).

    Raises:
        UserError: it is no repository, or has no IDs.
    """
    name = r"[\w.-]+"
    if re.fullmatch(rf"{name}@\d+/{name}@\d+", github, re.ASCII):
        return f"repo:{github}"
    repository = re.sub(r"@\d+", "", github)
    if not re.fullmatch(rf"{name}/{name}", repository, re.ASCII):
        raise UserError(f"--github {github} is no repository", "give OWNER@ID/REPOSITORY@ID")
    if without_ids and github == repository:
        return f"repo:{github}"
    printed = r"\(.owner.login)@\(.owner.id)/\(.name)@\(.id)"
    raise UserError(
        f"--github {github} lacks the IDs of owner and repository, which GitHub's tokens hold",
        f"give what this prints: gh api repos/{repository} --jq '\"{printed}\"', or add "
        "--without-ids for a repository from before 2026-07-15 that has not opted in",
    )


GITHUB_PARAMETERS = {
    "ExistingProvider": parameter(
        f"ARN of the account's OIDC provider for {GITHUB}, which a deleted stack leaves; "
        "empty: create it"
    ),
    "Environment": parameter("The environment of the repository that sends jobs", "sagemaker"),
    "Branch": parameter("The branch whose workflow sends jobs", "main"),
}
GITHUB_OUTPUTS = {
    "GitHubPreflightRole": {
        "Description": "AWS_PREFLIGHT_ROLE_ARN of the workflow, for pull requests",
        "Value": {"Fn::GetAtt": ["GitHubPreflightRole", "Arn"]},
    },
    "GitHubRole": {
        "Description": "AWS_ROLE_ARN of the workflow, which sends from one environment",
        "Value": {"Fn::GetAtt": ["GitHubRole", "Arn"]},
    },
}


def github_resources(
    sender: str, subject: str, sending: dict[str, Any], looking: dict[str, Any]
) -> dict[str, Any]:
    """Two roles for GitHub's OIDC, and its provider.

    A pull request's workflow is its author's to change, so that its role may only look. What one
    branch runs in one environment, whose reviewers approve it, may send. An account has one such
    provider, which other stacks may use: it outlives this one.

    Args:
        sender: name of the role that sends.
        subject: begins the subject of the repository's tokens.
        sending: the sender's policy.
        looking: the policy of pull requests.
    """
    provider = {
        "Type": "AWS::IAM::OIDCProvider",
        "Condition": "NoProvider",
        **KEPT,
        "Properties": {"Url": f"https://{GITHUB}", "ClientIdList": ["sts.amazonaws.com"]},
    }
    of_pull_request = from_github({"sub": f"{subject}:pull_request"})
    # With an environment the subject has no branch. AWS knows these claims of GitHub's, too
    # (IAM/latest/UserGuide/reference_policies_iam-condition-keys.html, OIDC federation).
    of_branch = from_github(
        {
            "sub": {"Fn::Sub": f"{subject}:environment:${{Environment}}"},
            "ref": {"Fn::Sub": "refs/heads/${Branch}"},
        }
    )
    return {
        "GitHubProvider": provider,
        "GitHubPreflightRole": role(f"{sender}-preflight", of_pull_request, "looking", looking),
        "GitHubRole": role(sender, of_branch, "sending", sending),
    }


def from_github(claims: dict[str, Any]) -> dict[str, Any]:
    """Trust in tokens of GitHub's that have these claims."""
    provider = {"Fn::If": ["NoProvider", {"Ref": "GitHubProvider"}, {"Ref": "ExistingProvider"}]}
    wanted = {"aud": "sts.amazonaws.com", **claims}
    return trust(
        {"Federated": provider},
        "sts:AssumeRoleWithWebIdentity",
        {"StringEquals": {f"{GITHUB}:{claim}": value for claim, value in wanted.items()}},
    )


def trust(principal: dict[str, Any], action: str, condition: dict[str, Any]) -> dict[str, Any]:
    """Who may take a role on."""
    statement = {
        "Effect": "Allow",
        "Principal": principal,
        "Action": action,
        "Condition": condition,
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def filled_policy(given: Facts, who: str) -> dict[str, Any]:
    """The policy, whose ARNs CloudFormation completes."""
    document = policy(given, who)
    for statement in document["Statement"]:
        statement["Resource"] = [filled(arn) for arn in statement["Resource"]]
    return document


def use_of_bucket_key(roles: list[str]) -> dict[str, Any]:
    """The policy of roles that read and write what the bucket's own key encrypts."""
    use = {
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": [{"Ref": "BucketKey"}],
    }
    return {
        "Type": "AWS::IAM::Policy",
        "Condition": "HasBucketKey",
        "Properties": {
            "PolicyName": "bucket-key",
            "PolicyDocument": {"Version": "2012-10-17", "Statement": [use]},
            "Roles": [{"Ref": role} for role in roles],
        },
    }


def filled(text: str) -> Any:
    """The text, where need be with CloudFormation's order to fill it in."""
    return {"Fn::Sub": text} if "${" in text else text


def attribute(resource: str, name: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [resource, name]}
