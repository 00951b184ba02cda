"""What a job needs in an account, as policies and as one file of CloudFormation.

Both are made of the table of permissions (table.py), so that they hold what preflight asks for and
no more. Nothing here asks AWS for anything.
"""

from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, configuration, deploy_plan, images, request
from smlightning.launch import resources as hosts
from smlightning.launch.account.table import (
    CALLER,
    DEPLOYER,
    ENDPOINT,
    EVERY,
    SAGEMAKER,
    Facts,
    Need,
    needs,
    secret_keys,
)
from smlightning.launch.job import Job
from smlightning.project import Project

ACCOUNT, PARTITION = "${AWS::AccountId}", "${AWS::Partition}"  # CloudFormation's own words
GITHUB = "token.actions.githubusercontent.com"
LONGEST_ROLE_NAME = 64

# What preflight asks beside the simulation, and the commands that follow, list and price jobs.
# None of it changes anything; AWS has no narrower resources for most of them.
QUESTIONS = [
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
    "sagemaker:ListTrainingJobs",
    "sagemaker:ListTags",
    "servicequotas:ListServiceQuotas",
    "servicequotas:ListAWSDefaultServiceQuotas",
    "pricing:GetProducts",
    "s3:ListBucket",
]
QUESTIONS_OF_NETWORK = [
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeRouteTables",
    "ec2:DescribeVpcEndpoints",
]


def questions(given: Facts) -> dict[str, Any]:
    """The statement with which preflight looks up what the job names (named.py, network.py)."""
    job, body = given.job, given.request
    resources = body["ResourceConfig"]
    sources = [c.get("DataSource", {}) for c in body.get("InputDataConfig", [])]
    systems = {source.get("FileSystemDataSource", {}).get("FileSystemType") for source in sources}
    secrets = [secret for _, secret in secret_keys(job)]
    image = str(body["AlgorithmSpecification"].get("TrainingImage", ""))
    is_private_image = bool(images.ECR.match(image)) and not images.aws_image(image)
    is_encrypted = body["OutputDataConfig"].get("KmsKeyId") or resources.get("VolumeKmsKeyId")
    asked = {
        "ecr:DescribeImages": is_private_image,
        "elasticfilesystem:DescribeFileSystems": "EFS" in systems,
        "elasticfilesystem:DescribeMountTargets": "EFS" in systems,
        "fsx:DescribeFileSystems": "FSxLustre" in systems,
        "kms:DescribeKey": is_encrypted,
        "secretsmanager:DescribeSecret": not all(secret.is_parameter for secret in secrets),
        "ssm:DescribeParameters": any(secret.is_parameter for secret in secrets),
        "sagemaker:DescribeMlflowTrackingServer": ":mlflow-tracking-server/" in job.mlflow,
        "sagemaker:DescribeMlflowApp": ":mlflow-app/" in job.mlflow,
        "sagemaker:DescribeTrainingPlan": list(hosts.plans(resources)),
    }
    actions = QUESTIONS + [action for action, is_asked in asked.items() if is_asked]
    if body.get("VpcConfig"):
        actions += QUESTIONS_OF_NETWORK
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": [EVERY]}


def facts(
    job: Job,
    project: Project,
    *,
    account: str = ACCOUNT,
    partition: str = PARTITION,
    image: str = "",
    transform: tuple[str, str] | None = None,
) -> Facts:
    """What the table reads of a job in an account that may be a placeholder.

    Args:
        job: of job.toml.
        project: whose src/options.py names the metrics.
        account: its number.
        partition: of AWS's regions.
        image: that the model answers in; empty: AWS's own.
        transform: S3 addresses of a batch transform's input and output.

    Raises:
        UserError: no request can be built of this job.
    """
    body = request.dry_run(job, project, name=f"{job.name}-*")
    named = job.request.get("OutputDataConfig", {}).get("S3OutputPath")
    key = "request.OutputDataConfig.S3OutputPath" if named else "bucket"
    folders = {}
    for channel in body.get("InputDataConfig", []):
        uri = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        if channel["ChannelName"] in job.channels and uri:
            folders[f"channels.{channel['ChannelName']}"] = uri
    folders[key] = body["OutputDataConfig"]["S3OutputPath"]
    checkpoints = body.get("CheckpointConfig", {}).get("S3Uri", "")
    if checkpoints:
        folders["checkpoint_s3"] = checkpoints
    default = f"s3://sagemaker-{job.region}-"
    for name, uri in folders.items():
        if uri.startswith(default) and not job.bucket and not name.startswith("channels."):
            # Which account it is, is the template's own to say.
            folders[name] = default + account + uri.removeprefix(default)[12:]
    return Facts(
        job=job,
        request=body,
        partition=partition,
        account=account,
        role=f"arn:{partition}:iam::{account}:role/{role_path(job)}",
        folders=folders,
        output_key=key,
        job_name=f"{job.name}-*",
        inference_image=image,
        transform=transform,
    )


def refuse_deployment(who: str | None, image: str, transform: tuple[str, str] | None) -> None:
    """Refuse options of `deploy` that the policy asked for cannot hold.

    Args:
        who: the policy is for; None: no policy alone.
        image: that the model answers in; empty: AWS's own.
        transform: S3 addresses of a batch transform's input and output.

    Raises:
        UserError: an option belongs to another policy, or its value is of no use to one.
    """
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


def role_path(job: Job) -> str:
    """The execution role's name, after its path where it has one."""
    if job.role.startswith("arn:"):
        return job.role.partition(":role/")[2]
    return job.role or f"{job.name}-training"[:LONGEST_ROLE_NAME]


def policy(given: Facts, who: str) -> dict[str, Any]:
    """The policy of the caller or the role; actions on the same resources are one statement."""
    statements: list[dict[str, Any]] = []
    groups: dict[tuple[Any, ...], list[Need]] = {}
    for need in needs(given, who):
        groups.setdefault((need.resources, need.condition), []).append(need)
    for (resources, condition), group in groups.items():
        statement: dict[str, Any] = {
            "Effect": "Allow",
            "Action": sorted(need.action for need in group),
            "Resource": list(resources),
        }
        if condition:
            statement["Condition"] = {"StringEquals": dict(condition)}
        statements.append(statement)
    if who == CALLER:
        statements.append(questions(given))
    return {"Version": "2012-10-17", "Statement": statements}


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
    job: Job, project: Project, *, github: str = "", existing_bucket: bool = False
) -> dict[str, Any]:
    """A template: execution role, bucket, and two roles that GitHub's workflows take on.

    Args:
        job: of job.toml.
        project: whose src/options.py names the metrics.
        github: OWNER/REPOSITORY; empty: no such roles.
        existing_bucket: no bucket is created, as where the bucket is an organisation's, which the
            SDK's configuration file names.

    Raises:
        UserError: no request can be built of this job, or github is no repository.
    """
    given = facts(job, project)
    bucket = aws.s3_location(given.folders[given.output_key])[0]
    path, _, name = role_path(job).rpartition("/")
    exists = existing_bucket or bucket == configuration.load(job.region).bucket
    resources: dict[str, Any] = {} if exists else {"Bucket": private_bucket(bucket)}
    resources |= {
        "TrainingRole": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "RoleName": name,
                "Path": f"/{path}/" if path else "/",
                "AssumeRolePolicyDocument": trust(
                    {"Service": SAGEMAKER},
                    "sts:AssumeRole",
                    {"StringEquals": {"aws:SourceAccount": filled(ACCOUNT)}},
                ),
                "Policies": [{"PolicyName": "training", "PolicyDocument": filled_policy(given)}],
            },
        },
    }
    outputs = {
        "Role": {"Description": "role in job.toml", "Value": attribute("TrainingRole", "Arn")},
        "Bucket": {
            "Description": "bucket in job.toml",
            "Value": filled(bucket) if exists else {"Ref": "Bucket"},
        },
    }
    template: dict[str, Any] = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"What training jobs of {job.name} need, and no more",
    }
    if github:
        template |= github_parts(resources, outputs, given, github)
    return {**template, "Resources": resources, "Outputs": outputs}


def private_bucket(name: str) -> dict[str, Any]:
    """A bucket that outlives its stack, since it holds models."""
    return {
        "Type": "AWS::S3::Bucket",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "BucketName": filled(name),
            "PublicAccessBlockConfiguration": {
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
        },
    }


def github_parts(
    resources: dict[str, Any], outputs: dict[str, Any], given: Facts, github: str
) -> dict[str, Any]:
    """Add two roles for GitHub's OIDC, with parameters and conditions for them.

    A pull request's workflow is its author's to change, so that its role may only look
    (https://docs.github.com/actions/reference/security/oidc: ``sub`` of pull requests and of
    branches). What runs on one branch may send. An account has one such provider at most, so that
    an existing one can be named.
    """
    owner, _, repository = github.partition("/")
    if not owner or not repository or "/" in repository:
        raise UserError(f"--github {github} is no repository", "give OWNER/REPOSITORY")
    resources["GitHubProvider"] = {
        "Type": "AWS::IAM::OIDCProvider",
        "Condition": "NoProvider",
        "Properties": {"Url": f"https://{GITHUB}", "ClientIdList": ["sts.amazonaws.com"]},
    }
    looking = {"Version": "2012-10-17", "Statement": [questions(given)]}
    branch = {"Fn::Sub": f"repo:{github}:ref:refs/heads/${{Branch}}"}
    for role, subject, name, document in (
        ("GitHubPreflightRole", f"repo:{github}:pull_request", "looking", looking),
        ("GitHubRole", branch, "sending", filled_policy(given, CALLER)),
    ):
        audience = {f"{GITHUB}:aud": "sts.amazonaws.com"}
        resources[role] = {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": trust(
                    {"Federated": github_provider()},  # each its own: YAML would refer to one
                    "sts:AssumeRoleWithWebIdentity",
                    {"StringEquals": {**audience, f"{GITHUB}:sub": subject}},
                ),
                "Policies": [{"PolicyName": name, "PolicyDocument": document}],
            },
        }
    outputs["GitHubPreflightRole"] = {
        "Description": "AWS_PREFLIGHT_ROLE_ARN of the workflow, for pull requests",
        "Value": attribute("GitHubPreflightRole", "Arn"),
    }
    outputs["GitHubRole"] = {
        "Description": "AWS_ROLE_ARN of the workflow, which sends from one branch",
        "Value": attribute("GitHubRole", "Arn"),
    }
    return {
        "Parameters": {
            "ExistingProvider": {
                "Type": "String",
                "Default": "",
                "Description": f"ARN of the account's OIDC provider for {GITHUB}; empty: create it",
            },
            "Branch": {
                "Type": "String",
                "Default": "main",
                "Description": "The branch whose workflow may send jobs",
            },
        },
        "Conditions": {"NoProvider": {"Fn::Equals": [{"Ref": "ExistingProvider"}, ""]}},
    }


def github_provider() -> dict[str, Any]:
    """The ARN of the account's OIDC provider for GitHub."""
    return {"Fn::If": ["NoProvider", {"Ref": "GitHubProvider"}, {"Ref": "ExistingProvider"}]}


def trust(principal: dict[str, Any], action: str, condition: dict[str, Any]) -> dict[str, Any]:
    """Who may take a role on."""
    statement = {
        "Effect": "Allow",
        "Principal": principal,
        "Action": action,
        "Condition": condition,
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def filled_policy(given: Facts, who: str = "role") -> dict[str, Any]:
    """The policy, whose ARNs CloudFormation completes."""
    document = policy(given, who)
    for statement in document["Statement"]:
        statement["Resource"] = [filled(arn) for arn in statement["Resource"]]
    return document


def filled(text: str) -> Any:
    """The text, where need be with CloudFormation's order to fill it in."""
    return {"Fn::Sub": text} if "${AWS::" in text else text


def attribute(resource: str, name: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [resource, name]}
