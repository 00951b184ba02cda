"""Preflight finds what the job's role lacks, from the answers of IAM's simulation.

The answers have the form that AWS documents; only AWS's own simulator can prove them.
"""

from typing import Any

import pytest
from policies import simulation

from moto_account import ACCOUNT, REGION, findings, levels, record, refusal, simulated
from small_job import PROJECT
from smlightning_sagemaker import preflight
from smlightning_sagemaker.job.aws import LOG_GROUP
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import role

pytest_plugins = "moto_account"

LOGS = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group"


@pytest.fixture
def asked(aws, monkeypatch) -> dict[str, dict[str, Any]]:
    """The question of IAM's simulation for each action; everything is allowed."""
    questions: dict[str, dict[str, Any]] = {}

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        questions[arguments["ActionNames"][0]] = arguments
        return simulated()(arguments)

    record(monkeypatch, SimulatePrincipalPolicy=answer)
    return questions


def test_the_role_is_asked_for_data_model_and_checkpoints(aws, good, asked):
    aws.client("s3").put_object(Bucket="language-id", Key="data/x", Body=b"x")
    channels = {"training": "s3://language-id/data"}
    assert findings(good.replace(channels=channels)) == []
    assert {question["PolicySourceArn"] for question in asked.values()} == {good.role}
    data, code, *own = asked["s3:GetObject"]["ResourceArns"]
    assert data == "arn:aws:s3:::language-id/data*"
    assert own == asked["s3:PutObject"]["ResourceArns"]
    beginning = "arn:aws:s3:::language-id/language-id-"
    assert [arn.startswith(beginning) for arn in (code, *own)] == [True, True, True]
    assert [arn.rsplit("/", 2)[1] for arn in (code, *own)] == ["source", "output", "checkpoints"]
    assert asked["s3:DeleteObject"]["ResourceArns"] == own[1:]
    assert asked["s3:ListBucket"]["ResourceArns"] == ["arn:aws:s3:::language-id"]


def test_addresses_of_access_points_and_directory_buckets_are_not_simulated(aws, good, asked):
    point = f"s3://arn:aws:s3:{REGION}:{ACCOUNT}:accesspoint/one/x"
    channels = {"one": point, "two": "s3://words--use1-az4--x-s3/x"}
    findings(good.replace(channels=channels))
    assert len(asked["s3:GetObject"]["ResourceArns"]) == 3  # code, model and checkpoints


@pytest.mark.parametrize(
    ("action", "decision", "details", "level"),
    [
        ("s3:PutObject", "implicitDeny", {}, "error"),  # the model is lost when the job ends
        ("s3:GetObject", "explicitDeny", {}, "error"),  # no other policy overrides it
        ("s3:GetObject", "implicitDeny", {}, "warning"),  # the bucket's own policy may allow it
        ("s3:PutObject", "implicitDeny", {"MissingContextValues": ["aws:SourceVpce"]}, "warning"),
        (
            "s3:PutObject",
            "explicitDeny",
            {"OrganizationsDecisionDetail": {"AllowedByOrganizations": False}},
            "warning",
        ),
        (
            "s3:PutObject",
            "implicitDeny",
            {"PermissionsBoundaryDecisionDetail": {"AllowedByPermissionsBoundary": False}},
            "warning",
        ),
    ],
)
def test_a_denied_action_is_a_finding(aws, good, monkeypatch, action, decision, details, level):
    record(monkeypatch, SimulatePrincipalPolicy=simulated(action, decision=decision, **details))
    (finding,) = findings(good)
    assert (finding.level, finding.key) == (level, f"role.{action}")
    assert finding.problem.startswith(f"training may not {action} on arn:aws:s3:::language-id")


def test_a_role_that_writes_models_and_checkpoints_alone_is_enough(aws, good, monkeypatch):
    everything, bucket = "arn:aws:s3:::language-id/*", "arn:aws:s3:::language-id"
    own = [f"{everything}/output/*", f"{everything}/checkpoints/*"]
    allowed = {
        "s3:GetObject": [everything],
        "s3:ListBucket": [bucket],
        "s3:PutObject": own,
        "s3:DeleteObject": own[1:],
        "logs:CreateLogGroup": [f"{LOGS}:{LOG_GROUP}"],
        "logs:CreateLogStream": [f"{LOGS}:{LOG_GROUP}:log-stream:language-id-*"],
        "logs:PutLogEvents": [f"{LOGS}:{LOG_GROUP}:log-stream:language-id-*"],
    }
    policy = {"Statement": [{"Action": [name], "Resource": on} for name, on in allowed.items()]}
    record(monkeypatch, SimulatePrincipalPolicy=simulation(policy))
    assert findings(good) == []


@pytest.mark.parametrize("action", ["CreateLogGroup", "CreateLogStream", "PutLogEvents"])
def test_a_role_that_may_not_write_the_log_is_a_finding(aws, good, monkeypatch, action):
    """The job would train unseen. A group that exists needs no permission to create it."""
    record(monkeypatch, SimulatePrincipalPolicy=simulated(f"logs:{action}"))
    expected = [("warning", f"role.logs:{action}")]
    assert levels(good) == expected
    aws.client("logs").create_log_group(logGroupName=LOG_GROUP)
    assert levels(good) == ([] if action == "CreateLogGroup" else expected)


def test_only_the_denied_resource_is_named(aws, good, monkeypatch):
    aws.client("s3").create_bucket(Bucket="words-data")
    aws.client("s3").put_object(Bucket="words-data", Key="x", Body=b"x")

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        answered = simulated()(arguments)
        for one in answered["EvaluationResults"][0]["ResourceSpecificResults"]:
            if "words-data" in one["EvalResourceName"]:
                one["EvalResourceDecision"] = "implicitDeny"
        return answered

    record(monkeypatch, SimulatePrincipalPolicy=answer)
    reading, listing = findings(good.replace(channels={"training": "s3://words-data/"}))
    assert "may not s3:GetObject on arn:aws:s3:::words-data/*," in reading.problem
    assert "may not s3:ListBucket on arn:aws:s3:::words-data," in listing.problem


@pytest.fixture
def key(aws) -> str:
    return str(aws.client("kms").create_key()["KeyMetadata"]["Arn"])


def encrypted(aws, key: str, bucket: str = "language-id") -> None:
    """Let a customer's key encrypt the bucket by default."""
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    aws.client("s3").put_bucket_encryption(
        Bucket=bucket,
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": default}]
        },
    )


def test_the_buckets_own_key_is_asked_for(aws, good, asked, key):
    findings(good)
    assert not [action for action in asked if action.startswith("kms:")]
    encrypted(aws, key)
    assert findings(good) == []
    for action in ("kms:GenerateDataKey", "kms:Decrypt"):
        assert asked[action]["ResourceArns"] == [key]
        context = {
            entry["ContextKeyName"]: entry["ContextKeyValues"]
            for entry in asked[action]["ContextEntries"]
        }
        assert context["kms:ViaService"] == [f"s3.{REGION}.amazonaws.com"]


def test_the_requests_keys_are_asked_for_by_their_arn(aws, good, asked, key):
    aws.client("kms").create_alias(AliasName="alias/team", TargetKeyId=key)
    keys = {
        "OutputDataConfig": {"KmsKeyId": "alias/team"},
        "ResourceConfig": {"VolumeKmsKeyId": key},
    }
    job = good.replace(request=keys, instance_type="ml.c5.4xlarge")  # without disks of its own
    assert findings(job) == []
    assert asked["kms:Encrypt"]["ResourceArns"] == [key]
    assert asked["kms:GenerateDataKey"]["ResourceArns"] == [key]
    assert asked["kms:CreateGrant"]["ResourceArns"] == [key]


def test_a_disabled_key_is_an_error(aws, good, key):
    encrypted(aws, key)
    aws.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    (finding,) = findings(good)
    assert finding.level == "error" and "is Disabled" in finding.problem


def test_a_denied_key_is_a_warning_since_its_own_policy_may_allow_it(aws, good, monkeypatch, key):
    encrypted(aws, key)
    record(monkeypatch, SimulatePrincipalPolicy=simulated("kms:GenerateDataKey"))
    assert levels(good) == [("warning", "role.kms:GenerateDataKey")]


def test_a_secret_exists_and_the_role_may_read_it(aws, good, asked):
    store = aws.client("secretsmanager")
    job = good.replace(secrets={"WANDB_API_KEY": "words/wandb:key"})
    assert levels(job) == [("error", "secrets.WANDB_API_KEY")]
    arn = store.create_secret(Name="words/wandb", SecretString="x")["ARN"]
    assert levels(job) == []
    assert asked["secretsmanager:GetSecretValue"]["ResourceArns"] == [arn]
    store.delete_secret(SecretId="words/wandb")
    assert levels(job) == [("error", "secrets.WANDB_API_KEY")]


def test_a_parameter_exists_and_the_role_may_read_it(aws, good, asked):
    job = good.replace(secrets={"HF_TOKEN": "ssm:/words/hub"})
    assert levels(job) == [("error", "secrets.HF_TOKEN")]
    aws.client("ssm").put_parameter(Name="/words/hub", Value="x", Type="SecureString")
    assert levels(job) == []
    (arn,) = asked["ssm:GetParameter"]["ResourceArns"]
    assert arn == f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/words/hub"


@pytest.mark.parametrize("text", ["/words/hub:3", "/words/hub:prod", "ARN", "ARN:3"])
def test_a_version_a_label_or_an_arn_of_a_parameter_is_right(aws, good, asked, text):
    """GetParameter takes them, and the role needs the parameter's ARN (API_GetParameter)."""
    aws.client("ssm").put_parameter(Name="/words/hub", Value="x", Type="String")
    arn = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/words/hub"
    assert levels(good.replace(secrets={"HF_TOKEN": f"ssm:{text.replace('ARN', arn)}"})) == []
    assert asked["ssm:GetParameter"]["ResourceArns"] == [arn]


def test_the_role_may_use_the_key_of_a_secret(aws, good, asked, key):
    aws.client("secretsmanager").create_secret(Name="words/db", SecretString="x", KmsKeyId=key)
    store = {"Name": "/words/hub", "Value": "x", "Type": "SecureString"}
    aws.client("ssm").put_parameter(**store, KeyId=key)
    for text, service in (("words/db", "secretsmanager"), ("ssm:/words/hub", "ssm")):
        assert findings(good.replace(secrets={"DB": text})) == []
        question = asked.pop("kms:Decrypt")
        assert question["ResourceArns"] == [key]
        assert {
            "ContextKeyName": "kms:ViaService",
            "ContextKeyType": "string",
            "ContextKeyValues": [f"{service}.{REGION}.amazonaws.com"],
        } in question["ContextEntries"]


def test_no_hint_names_a_permission_that_infra_has_not(aws, good, monkeypatch, key):
    record(monkeypatch, SimulatePrincipalPolicy=simulated("kms:CreateGrant"))
    config = {"ResourceConfig": {"VolumeKmsKeyId": key}}
    (finding,) = findings(good.replace(request=config, instance_type="ml.c5.4xlarge"))
    assert finding.key == "role.kms:CreateGrant" and "infra/" not in finding.hint


def test_a_key_that_may_not_be_looked_up_is_skipped_and_the_others_are_asked_for(
    aws, good, asked, monkeypatch, key
):
    record(monkeypatch, GetBucketEncryption=refusal("AccessDenied", "GetBucketEncryption"))
    job = good.replace(request={"OutputDataConfig": {"KmsKeyId": key}})
    assert levels(job) == [("skipped", "bucket language-id")]
    assert asked["kms:GenerateDataKey"]["ResourceArns"] == [key]


def test_every_simulated_action_has_a_purpose(aws, good, asked, key):
    encrypted(aws, key)
    aws.client("secretsmanager").create_secret(Name="words/db", SecretString="x")
    aws.client("ssm").put_parameter(Name="api", Value="x", Type="String")
    secrets = {"DB": "words/db", "API": "ssm:api"}
    config = {
        "ResourceConfig": {"VolumeKmsKeyId": key},
        "OutputDataConfig": {"KmsKeyId": key},
    }
    job = good.replace(secrets=secrets, request=config, instance_type="ml.c5.4xlarge")
    assert findings(job) == []
    assert asked.keys() == role.PURPOSES.keys()


def test_the_key_of_the_datas_bucket_is_asked_for(aws, good, asked, key):
    aws.client("s3").create_bucket(Bucket="words-data")
    aws.client("s3").put_object(Bucket="words-data", Key="x", Body=b"x")
    encrypted(aws, key, "words-data")
    assert findings(good.replace(channels={"training": "s3://words-data/"})) == []
    assert asked["kms:Decrypt"]["ResourceArns"] == [key] and "kms:GenerateDataKey" not in asked


VOLUME = "request.ResourceConfig.VolumeKmsKeyId"
OUTPUT_KEY = "request.OutputDataConfig.KmsKeyId"


def errors_offline(job: Job) -> list[str]:
    found, _ = preflight.offline_checks(job, PROJECT)
    return [finding.key for finding in found if finding.level == "error"]


@pytest.mark.parametrize("kind", ["ml.g5.xlarge", "ml.p4d.24xlarge", "ml.m5d.xlarge"])
def test_a_type_with_disks_of_its_own_takes_no_volume_key(aws, good, key, kind):
    job = good.replace(instance_type=kind, request={"ResourceConfig": {"VolumeKmsKeyId": key}})
    assert VOLUME in errors_offline(job)


@pytest.mark.parametrize("name", ["alias/team", f"arn:aws:kms:{REGION}:{ACCOUNT}:alias/team"])
def test_a_volume_key_is_named_by_its_id_or_arn(aws, good, key, name):
    aws.client("kms").create_alias(AliasName="alias/team", TargetKeyId=key)
    job = good.replace(instance_type="ml.c5.4xlarge")
    named = job.replace(request={"ResourceConfig": {"VolumeKmsKeyId": name}})
    assert VOLUME in errors_offline(named) and levels(named) == [("error", VOLUME)]
    by_id = job.replace(request={"ResourceConfig": {"VolumeKmsKeyId": key.rpartition("/")[2]}})
    assert VOLUME not in errors_offline(by_id) and levels(by_id) == []
    assert levels(good.replace(request={"OutputDataConfig": {"KmsKeyId": name}})) == []


@pytest.mark.parametrize(
    ("name", "answer", "level"),
    [
        ("alias/absent", None, "error"),
        ("1234abcd-12ab-34cd-56ef-1234567890ab", None, "error"),
        (f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/1", refusal("InvalidArnException"), "error"),
        (f"arn:aws:kms:{REGION}:999999999999:key/1", refusal("AccessDeniedException"), "skipped"),
    ],
)
def test_a_key_that_does_not_exist_loses_the_model(aws, good, monkeypatch, name, answer, level):
    """The other keys are judged all the same."""
    if answer:
        record(monkeypatch, DescribeKey=answer)
    job = good.replace(request={"OutputDataConfig": {"KmsKeyId": name}})
    assert levels(job) == [(level, OUTPUT_KEY)]


def test_a_key_of_signatures_encrypts_nothing(aws, good):
    made = aws.client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec="RSA_2048")
    config = {"OutputDataConfig": {"KmsKeyId": made["KeyMetadata"]["KeyId"]}}
    assert levels(good.replace(request=config)) == [("error", OUTPUT_KEY)]
