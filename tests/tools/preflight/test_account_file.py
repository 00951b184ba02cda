"""The account's file: what `smlightning account` prints, created in moto, linted, and enough."""

import ast
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from botocore.client import BaseClient
from policies import ALLOWED, EXPLICIT, evaluate, simulation
from test_policy_table import JOBS, ROLE

from moto_account import ACCOUNT, REGION, record, refusal, simulated
from small_job import PROJECT
from smlightning.errors import UserError
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job, JobError, Network
from smlightning_sagemaker.preflight import account
from smlightning_sagemaker.preflight.account import table, template

pytest_plugins = "moto_account"


@pytest.fixture
def full() -> Job:
    """A job that uses whatever needs a permission of its own."""
    return JOBS["full"]


def facts(job: Job) -> table.Facts:
    return template.facts(job, PROJECT, account=ACCOUNT, partition="aws")


WHOSE = ("caller", "role")


def test_the_stack_is_created_and_preflight_has_nothing_to_correct(aws, monkeypatch):
    """CloudFormation in moto creates it, and the simulation evaluates its role's policies."""
    pytest.importorskip("openapi_spec_validator")  # of moto[cloudformation]
    job = Job(
        name="words",
        region=REGION,
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        role="words",
        bucket="words-bucket",
        hyperparameters={"epochs": 6},
    )
    body = yaml.safe_dump(template.cloudformation(job, PROJECT))
    stacks = aws.client("cloudformation")
    stacks.create_stack(StackName="words", TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
    (stack,) = stacks.describe_stacks(StackName="words")["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    assert outputs["Bucket"] == "words-bucket" and outputs["Role"] == ROLE
    policy = aws.client("iam").get_role_policy(RoleName="words", PolicyName="training")
    document = ast.literal_eval(policy["PolicyDocument"])  # of moto, as Python writes it
    record(monkeypatch, SimulatePrincipalPolicy=simulation({ROLE: [document]}))
    wanted = job.replace(role=outputs["Role"])
    assert account.check(wanted, request.dry_run(wanted, PROJECT)) == []


def test_the_stacks_parameters_give_its_roles_path_and_boundary(aws, full):
    pytest.importorskip("openapi_spec_validator")  # of moto[cloudformation]
    boundary = aws.client("iam").create_policy(
        PolicyName="boundary", PolicyDocument=json.dumps(template.policy(facts(full), "role"))
    )["Policy"]["Arn"]
    body = yaml.safe_dump(template.cloudformation(full, PROJECT, github=GITHUB))
    default = yaml.safe_load(body)["Parameters"]["RolePath"]["Default"]
    assert default == "/"
    given = {"RolePath": "/team/", "PermissionsBoundary": boundary}
    aws.client("cloudformation").create_stack(
        StackName="words",
        TemplateBody=body,
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
    )
    for name in ("words", "words-github", "words-github-preflight"):
        role = aws.client("iam").get_role(RoleName=name)["Role"]
        assert role["Path"] == "/team/"
        assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary


def test_cfn_lint_has_no_finding(full, tmp_path):
    """cfn-lint's IAM rules also check the names of actions."""
    api = pytest.importorskip("cfnlint.api")
    small = full.replace(request={}, role="", bucket="", network=Network(), tags={})
    express = full.replace(bucket="words--use1-az4--x-s3")
    whole = {"github": GITHUB, "notify": "me@example.com"}
    for job, options in ((full, whole), (small, {}), (express, whole)):
        body = yaml.safe_dump(template.cloudformation(job, PROJECT, **options))
        matches = [match for match in api.lint_all(body) if match.rule.id[0] != "I"]
        assert [str(match) for match in matches] == []  # as the command: no informational ones


def test_the_end_of_each_job_of_the_project_is_mailed(full):
    stack = template.cloudformation(full, PROJECT, notify="me@example.com")["Resources"]
    pattern = stack["NotifyRule"]["Properties"]["EventPattern"]
    assert pattern["detail-type"] == ["SageMaker Training Job State Change"]
    assert pattern["detail"]["TrainingJobName"] == [{"prefix": "words-"}]
    (subscription,) = stack["NotifyTopic"]["Properties"]["Subscription"]
    assert subscription["Endpoint"] == "me@example.com"
    (statement,) = stack["NotifyTopicPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    without_mail = template.cloudformation(full, PROJECT)["Resources"]
    assert not [name for name in without_mail if name.startswith("Notify")]
    with pytest.raises(UserError, match="my phone"):
        template.cloudformation(full, PROJECT, notify="my phone")


GITHUB = "me@12/words@3456"
LOOKING = ("Describe", "List", "Get", "Simulate")


def test_pull_requests_only_read_and_one_environment_of_one_branch_sends(full):
    resources = template.cloudformation(full, PROJECT, github=GITHUB)["Resources"]
    claims, actions = {}, {}
    for name in ("GitHubPreflightRole", "GitHubRole"):
        properties = resources[name]["Properties"]
        (statement,) = properties["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Condition"].keys() == {"StringEquals"}  # no pattern
        claims[name] = {
            key.removeprefix(f"{template.GITHUB}:"): value
            for key, value in statement["Condition"]["StringEquals"].items()
        }
        (policy,) = properties["Policies"]
        statements = [one for one in policy["PolicyDocument"]["Statement"] if "Action" in one]
        actions[name] = {action for one in statements for action in one["Action"]}
    aud = "sts.amazonaws.com"
    assert claims == {
        "GitHubPreflightRole": {"aud": aud, "sub": "repo:me@12/words@3456:pull_request"},
        "GitHubRole": {
            "aud": aud,
            "sub": {"Fn::Sub": "repo:me@12/words@3456:environment:${Environment}"},
            "ref": {"Fn::Sub": "refs/heads/${Branch}"},
        },
    }
    looking = actions["GitHubPreflightRole"]
    changing = {one for one in looking if not one.partition(":")[2].startswith(LOOKING)}
    assert changing == set()
    assert looking < actions["GitHubRole"] and "iam:PassRole" not in looking


@pytest.mark.parametrize("given", ["me/words", "me@12/words", "me/words@3456", "me@x/words@y"])
def test_a_repository_without_ids_is_rejected_with_the_command_that_prints_them(full, given):
    with pytest.raises(UserError) as raised:
        template.cloudformation(full, PROJECT, github=given)
    assert given in raised.value.problem
    if given != "me@x/words@y":  # which is no repository
        assert "gh api repos/me/words --jq" in raised.value.cure
        assert "--without-ids" in raised.value.cure


def test_a_repository_from_before_the_ids_is_trusted_by_name_on_request(full):
    made = template.cloudformation(full, PROJECT, github="me/words", without_ids=True)
    trusted = made["Resources"]["GitHubPreflightRole"]["Properties"]["AssumeRolePolicyDocument"]
    condition = trusted["Statement"][0]["Condition"]["StringEquals"]
    assert condition[f"{template.GITHUB}:sub"] == "repo:me/words:pull_request"
    with pytest.raises(UserError):  # else a subject that no token has
        template.cloudformation(full, PROJECT, github="me@12/words", without_ids=True)


def test_bucket_and_provider_outlive_the_stack_and_have_the_jobs_tags(full):
    resources = template.cloudformation(full, PROJECT, github=GITHUB)["Resources"]
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        kept = {name for name, one in resources.items() if one.get(policy) == "Retain"}
        assert kept == {"Bucket", "BucketPolicy", "GitHubProvider"}
    tagged = {name for name, one in resources.items() if "Tags" in one["Properties"]}
    assert resources.keys() - tagged == {"BucketPolicy", "BucketKeyPolicy"}
    assert resources["Bucket"]["Properties"]["Tags"] == [{"Key": "project", "Value": "words"}]


def test_the_bucket_rejects_requests_without_tls(full):
    resources = template.cloudformation(full, PROJECT)["Resources"]
    (tls,) = resources["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    tls = {**tls, "Resource": ["arn:aws:s3:::words-bucket", "arn:aws:s3:::words-bucket/*"]}
    place = "arn:aws:s3:::words-bucket/words-20260101-000000/x"
    for secure, decision in (("true", ALLOWED), ("false", EXPLICIT)):
        context = {"aws:SecureTransport": [secure]}
        verdict = evaluate(
            [template.policy(facts(full), "role"), {"Statement": tls}],
            "s3:GetObject",
            place,
            context,
        )
        assert verdict.decision == decision


# Permissions that have another name than the service or the call.
PREFIXES = {"efs": "elasticfilesystem", "service-quotas": "servicequotas"}
ACTIONS = {"HeadBucket": "ListBucket", "ListObjectsV2": "ListBucket"}
LOOK_UPS = {
    "ecr:DescribeImages",
    "elasticfilesystem:DescribeFileSystems",
    "fsx:DescribeFileSystems",
    "kms:DescribeKey",
    "secretsmanager:DescribeSecret",
    "ssm:DescribeParameters",
}


def test_the_callers_policy_allows_every_call_of_preflight(aws, full, monkeypatch):
    """And nothing that it does not look up for the job."""
    denied = {action.partition(":")[2] for action in LOOK_UPS}
    record(
        monkeypatch,
        SimulatePrincipalPolicy=simulated(),
        **{operation: refusal("AccessDenied", operation) for operation in denied},
    )
    answer, asked = BaseClient._make_api_call, set()

    def note(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        service = client.meta.service_model.service_name
        asked.add(f"{PREFIXES.get(service, service)}:{ACTIONS.get(operation, operation)}")
        return answer(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", note)
    job = full.replace(role=f"arn:aws:iam::{ACCOUNT}:role/training")
    others = {
        "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/own:1",
        "secrets": {"DB": "ssm:/team/db"},
    }
    seen = set()
    for kind in ("", "EFS", "FSxLustre"):
        wanted = job.replace(**others) if kind else job
        asked.clear()
        body = request.dry_run(wanted, PROJECT)
        if kind:
            system = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemType": kind}
            body["InputDataConfig"][0]["DataSource"] = {"FileSystemDataSource": system}
        account.check(wanted, body)
        given = replace(facts(wanted), request=body)
        allowed = {
            one for each in template.policy(given, "caller")["Statement"] for one in each["Action"]
        }
        assert asked - {"sts:GetCallerIdentity"} <= allowed
        assert allowed & LOOK_UPS <= asked
        seen |= asked
    assert seen >= LOOK_UPS


def test_preflight_checks_the_permissions_of_the_sender(aws, good, monkeypatch):
    iam = aws.client("iam")
    sender = iam.create_role(RoleName="sending", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    principals = []

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        principals.append(arguments["PolicySourceArn"])
        return simulated("sagemaker:CreateTrainingJob")(arguments)

    record(monkeypatch, SimulatePrincipalPolicy=answer)
    body = request.dry_run(good, PROJECT)
    for name in ("sending", sender):
        principals.clear()
        found = account.check(good, body, sender=name)
        assert set(principals) == {sender, good.role}
        assert "caller.sagemaker:CreateTrainingJob" in [each.key for each in found]
    (finding,) = account.check(good, body, sender="another")
    assert finding.key == "--sender" and "another" in finding.problem


def test_the_command_prints_the_file_and_policies(aws, full, monkeypatch, capsys):
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: full)
    assert main(["account", "--github", GITHUB]) == 0
    text = capsys.readouterr().out
    assert "&id" not in text  # CloudFormation reads no aliases of YAML
    printed = yaml.safe_load(text)
    assert set(printed["Resources"]) == {
        "Bucket",
        "BucketPolicy",
        "BucketKeyPolicy",
        "TrainingRole",
        "GitHubProvider",
        "GitHubPreflightRole",
        "GitHubRole",
    }
    for who in WHOSE:
        sender = ["--sender", "sending"] if who == "caller" else []
        assert main(["account", "--policy", who, *sender]) == 0
        document = json.loads(capsys.readouterr().out)
        given = replace(facts(full), senders=(f"arn:aws:iam::{ACCOUNT}:role/sending",))
        assert document == template.policy(given, who)
        assert "${" not in json.dumps(document)
    assert main(["account", "--existing-bucket"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert set(printed["Resources"]) == {"TrainingRole"}
    assert printed["Outputs"]["Bucket"]["Value"] == "words-bucket"
    assert main(["account", "--github", "words"]) == 1


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("name", {"name": "*"}),
        ("role", {"role": f"arn:aws:iam::{ACCOUNT}:role/*"}),
        ("role", {"role": "*"}),
        ("bucket", {"bucket": "*"}),
        ("image", {"image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/*:1"}),
        ("checkpoint_s3", {"checkpoint_s3": "s3://*/run1"}),
        ("checkpoint_s3", {"checkpoint_s3": "s3://words-other/run?/"}),
        ("checkpoint_s3", {"checkpoint_s3": "s3://words-other/${aws:username}"}),
        ("hub_token_secret", {"hub_token_secret": "*"}),
        ("channels.training", {"channels": {"training": "s3://words-data/*"}}),
        ("channels.training.s3_data", {"channels": {"training": {"s3_data": "s3://*/"}}}),
        ("secrets.DB", {"secrets": {"DB": "team/*"}}),
        ("secrets.DB", {"secrets": {"DB": "ssm:/team/*"}}),
        ("network.subnets", {"network": Network(subnets=["*"], security_groups=["sg-1"])}),
        (
            "environment.CA_REPOSITORY_ARN",
            {"environment": {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:a:1:repository/team/*"}},
        ),
        (
            "request.OutputDataConfig.KmsKeyId",
            {"request": {"OutputDataConfig": {"KmsKeyId": "*"}}},
        ),
        (
            "request.ProfilerConfig.S3OutputPath",
            {"request": {"ProfilerConfig": {"S3OutputPath": "s3://*/"}}},
        ),
    ],
)
def test_a_name_that_iam_reads_as_a_pattern_is_an_error(full, key, given):
    job = full.replace(**given)
    for make in (facts, lambda job: template.cloudformation(job, PROJECT)):
        with pytest.raises(JobError) as raised:
            make(job)
        assert [finding.key for finding in raised.value.findings] == [key]


def test_an_invalid_role_prints_no_policy(full, monkeypatch, capsys):
    wrong = full.replace(role="arn:aws")
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: wrong)
    assert main(["account", "--policy", "role"]) == 1
    printed = capsys.readouterr()
    assert "error   role:" in printed.err and not printed.out


@pytest.mark.parametrize("options", [["--sender", "me"], ["--policy", "role", "--sender", "me"]])
def test_an_option_of_another_policy_is_an_error(options, full, monkeypatch, capsys):
    monkeypatch.setattr("smlightning_sagemaker.job.job.load", lambda *_: full)
    assert main(["account", *options]) == 1
    assert f"does not use {options[-2]}" in capsys.readouterr().err


def test_a_role_by_name_has_the_account_of_the_credentials(aws, full):
    assert template.account_of(full.replace(role="words")) == ACCOUNT


def test_the_ecr_repository_is_the_images_own(full):
    own = full.replace(image="999999999999.dkr.ecr.us-east-1.amazonaws.com/team/mine:7")
    public = full.replace(image="public.ecr.aws/deep-learning-containers/pytorch:2.12-x-sagemaker")
    arn = "arn:aws:ecr:us-east-1:999999999999:repository/team/mine"
    assert table.resources_of(facts(own))["repository"] == [arn]
    assert table.resources_of(facts(public))["repository"] == []
