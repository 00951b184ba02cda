"""The table of permissions: each line is needed, the policies are enough, and they are no wider."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policies import ALLOWED, evaluate, iam_of, simulation, without
from test_corpora import BASE, RIGHT
from test_corpora import table as table_of

from moto_account import ACCOUNT, REGION, record
from small_job import PROJECT
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job import job as jobs
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.aws import partition
from smlightning_sagemaker.job.job import Job, Network
from smlightning_sagemaker.preflight import account
from smlightning_sagemaker.preflight.account import table, template
from smlightning_sagemaker.preflight.account.permissions import facts_of, missing_permissions

pytest_plugins = "moto_account"

ROLE = f"arn:aws:iam::{ACCOUNT}:role/words"
SENDER = f"arn:aws:iam::{ACCOUNT}:role/sending"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OTHER_KEY = KEY.replace("1234abcd", "9999abcd")
ANOTHERS = f"arn:aws:kms:{REGION}:999999999999:alias/theirs"
MLFLOW = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}"
WHO = ("caller", "role", "looker")


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "words",
        "region": REGION,
        "instance_type": "ml.m5.4xlarge",
        "instance_count": 2,
        "role": ROLE,
        "bucket": "words-bucket",
        "channels": {"training": "s3://words-data/train/"},
        "hyperparameters": {"dataset": "training"},
    }
    return Job(**{**values, **changes})


def file_system(kind: str) -> dict[str, Any]:
    return {
        "file_system_id": "fs-0123456789abcdef0",
        "file_system_type": kind,
        "directory_path": "/data",
    }


IN_VPC = Network(subnets=["subnet-0123456789abcdef0"], security_groups=["sg-0123456789abcdef0"])
JOBS = {
    "small": job(),
    "default bucket": job(bucket="", role="words"),
    "full": job(
        checkpoint_s3="s3://words-other/run1/",
        keep_alive_s=600,
        image=f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/team/train:1",
        secrets={"HF_TOKEN": "hub", "WANDB_API_KEY": "team/wandb", "DB": "ssm:/team/db"},
        environment={
            "CA_REPOSITORY_ARN": f"arn:aws:codeartifact:{REGION}:{ACCOUNT}:repository/team/python"
        },
        network=IN_VPC,
        tags={"project": "words"},
        request={
            "OutputDataConfig": {"KmsKeyId": KEY},
            "ResourceConfig": {
                "VolumeKmsKeyId": OTHER_KEY,
                "TrainingPlanArn": f"{MLFLOW}:training-plan/one",
            },
            "RemoteDebugConfig": {"EnableRemoteDebug": True},
        },
    ),
    "aliases": job(
        request={
            "OutputDataConfig": {"KmsKeyId": "alias/team"},
            "ResourceConfig": {"VolumeKmsKeyId": ANOTHERS},
        },
    ),
    "monitored": job(
        request={
            "ProfilerConfig": {"S3OutputPath": "s3://words-profiles/"},
            "DebugHookConfig": {"S3OutputPath": "s3://words-tensors/hook"},
            "TensorBoardOutputConfig": {"S3OutputPath": "s3://words-boards/"},
        }
    ),
    "object": job(channels={"training": "s3://words-data/train.csv"}),
    "manifest": job(
        channels={
            "training": {"s3_data": "s3://words-data/a.manifest", "s3_data_type": "ManifestFile"}
        }
    ),
    "EFS": job(channels={"training": file_system("EFS")}, network=IN_VPC),
    "FSx": job(channels={"training": file_system("FSxLustre")}, network=IN_VPC),
}


def patterns(given: Job) -> table.Facts:
    """Facts for a policy: patterns instead of one job's names."""
    return template.facts(
        given,
        PROJECT,
        account=ACCOUNT,
        partition=partition(given.region),
        senders=(SENDER,),
    )


def sent(given: Job) -> table.Facts:
    """Facts for preflight and deploy: one job, with the options of a deployment."""
    identity = {"UserId": "x", "Account": ACCOUNT, "Arn": SENDER}
    role = given.role if given.role.startswith("arn:") else ROLE
    context = account.Context(given, request.dry_run(given, PROJECT), identity, role)
    options = {"senders": (SENDER,)}
    return replace(facts_of(context, role), **options)


def own(given: Job) -> dict[str, Any]:
    return {who: template.policy(patterns(given), who) for who in WHO}


def variants(given: Job) -> list[tuple[table.Facts, table.Facts]]:
    """A pair of facts, for the needs of a job and for its policy."""
    return [(sent(given), patterns(given))]


def missing(given: table.Facts, who: str, policy: dict[str, Any]) -> list[Finding]:
    answer = simulation({ROLE: [policy]})
    iam = iam_of(answer)
    values = table.context_of_request(given.request)
    return list(missing_permissions(iam, who, ROLE, given, values))


def label(line: int) -> str:
    return f"{table.TABLE[line].who}.{table.TABLE[line].action}.{line}"


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_every_permission_with_its_policies(name):
    allowed, wanted = patterns(JOBS[name]), sent(JOBS[name])
    for who in WHO:
        policy = template.policy(allowed, who)
        assert missing(wanted, who, policy) == []


def test_policies_have_iams_grammar(aws):
    """moto accepts them, and they fit into a role's inline policies (10,240 characters)."""
    iam = aws.client("iam")
    for number, given in enumerate(JOBS.values()):
        for who, document in own(given).items():
            text = json.dumps(document, separators=(",", ":"))
            iam.create_policy(PolicyName=f"{who}-{number}", PolicyDocument=text)
            assert len(text) <= 10_240
    with pytest.raises(iam.exceptions.MalformedPolicyDocumentException):
        wrong = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:Get*"}]}
        iam.create_policy(PolicyName="wrong", PolicyDocument=json.dumps(wrong))


def test_each_right_job_has_every_permission_with_its_policies():
    usual = {**BASE, "name": "right", "instance_type": "ml.g5.12xlarge", "instance_count": 2}
    for case in RIGHT:
        given = jobs.from_table(table_of(case, usual), PROJECT)
        for who in WHO:
            found = missing(sent(given), who, template.policy(patterns(given), who))
            assert found == [], case["what"]


@pytest.mark.parametrize("line", range(len(table.TABLE)), ids=label)
def test_a_job_lacks_the_action_of_a_line_that_is_removed(line, monkeypatch):
    """The first job that needs the line."""
    lines = table.TABLE
    who, action, name = lines[line].who, lines[line].action, lines[line].resources
    for wanted, allowed in (pair for given in JOBS.values() for pair in variants(given)):
        if not table.resources_of(wanted)[name]:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(table, "TABLE", lines[:line] + lines[line + 1 :])
            policy = template.policy(allowed, who)
        found = missing(wanted, who, policy)
        assert [each.key for each in found] == [f"{who}.{action}"], found
        assert action in found[0].problem and found[0].cure
        return
    pytest.fail("no job needs it")


CONDITIONS: list[tuple[dict[str, Any], str]] = [
    ({"StringEquals": {"sagemaker:VpcSubnets": ["subnet-0123456789abcdef0"]}}, ""),
    ({"ForAllValues:StringLike": {"sagemaker:InstanceTypes": ["ml.m5.*"]}}, ""),
    ({"StringEquals": {"aws:RequestTag/project": "words"}}, ""),
    ({"NumericLessThanEquals": {"sagemaker:MaxRuntimeInSeconds": "86400"}}, ""),
    ({"Bool": {"sagemaker:NetworkIsolation": "false"}}, ""),
    ({"ArnLike": {"sagemaker:OutputKmsKey": f"*{KEY}"}}, ""),
    ({"ForAllValues:StringLike": {"sagemaker:InstanceTypes": ["ml.p4d.*"]}}, "error"),
    ({"StringEquals": {"aws:RequestTag/project": "another"}}, "error"),
    ({"StringEquals": {"aws:PrincipalTag/team": "vision"}}, "warning"),
    ({"StringEquals": {"aws:SourceVpce": "vpce-1"}}, "warning"),
]


@pytest.mark.parametrize(("condition", "level"), CONDITIONS, ids=str)
def test_conditions_of_policies_see_the_values_of_the_request(condition, level):
    """Values in the request decide; a condition on a value that only AWS knows is a warning."""
    wanted = JOBS["full"]
    creating = {"Effect": "Allow", "Action": ["sagemaker:CreateTrainingJob"], "Resource": ["*"]}
    policy = without(own(wanted)["caller"], "sagemaker:CreateTrainingJob")
    policy["Statement"].append({**creating, "Condition": condition})
    found = missing(sent(wanted), "caller", policy)
    assert [each.level for each in found] == ([level] if level else [])
    assert all(each.key == "caller.sagemaker:CreateTrainingJob" for each in found)


S3 = "arn:aws:s3:::"
DEFAULT = f"{S3}sagemaker-{REGION}-{ACCOUNT}"
STREAMS = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs:log-stream:"
SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:"
PARAMETER = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/"
SUBNET = f"arn:aws:ec2:{REGION}:{ACCOUNT}:subnet/"
# Job, action, what begins both ARNs, what the action is allowed on, and what next to it it is not.
LIMITS = [
    ("small", "s3:GetObject", S3, "words-bucket/words-2/source/x", "words-bucket/nlp-2/x"),
    ("small", "s3:GetObject", S3, "words-data/train/x", "words-data/training/x"),
    ("small", "s3:PutObject", S3, "words-bucket/words-2/output/x", "words-data/train/x"),
    ("small", "s3:DeleteObject", f"{S3}words-bucket/words-2/", "checkpoints/x", "output/x"),
    ("small", "s3:ListBucket", S3, "words-data", "another"),
    ("default bucket", "s3:PutObject", DEFAULT, "/words-2/x", "/nlp-2/x"),
    ("full", "s3:PutObject", S3, "words-other/run1/x", "words-other/run2/x"),
    ("full", "secretsmanager:GetSecretValue", SECRET, "hub-AbCdEf", "hub-admin-AbCdEf"),
    ("full", "ssm:GetParameter", PARAMETER, "team/db", "team/db2"),
    ("full", "kms:Decrypt", "", KEY, OTHER_KEY),
    ("full", "logs:PutLogEvents", STREAMS, "words-2/algo-1", "nlp-2/algo-1"),
    ("full", "ec2:CreateNetworkInterface", SUBNET, "subnet-0123456789abcdef0", "subnet-1"),
    ("monitored", "s3:PutObject", f"{S3}words-profiles/", "words-2/profiler-output/x", "x"),
    ("monitored", "s3:PutObject", f"{S3}words-tensors/", "hook/words-2/x", "words-2/x"),
    ("monitored", "s3:PutObject", f"{S3}words-boards/", "words-2/x", "nlp-2/x"),
    ("object", "s3:GetObject", f"{S3}words-data/", "train.csv", "test.csv"),
    ("manifest", "s3:GetObject", f"{S3}words-data/", "a.manifest", "a.manifest.old"),
]


@pytest.mark.parametrize(
    ("name", "action", "place", "inside", "outside"), LIMITS, ids=lambda value: str(value)[-40:]
)
def test_the_role_is_allowed_no_more_than_its_job(name, action, place, inside, outside):
    policy = own(JOBS[name])["role"]
    assert evaluate([policy], action, place + inside, {}).decision == ALLOWED
    assert evaluate([policy], action, place + outside, {}).decision != ALLOWED


@pytest.mark.parametrize("who", ["caller", "role"])
@pytest.mark.parametrize(
    ("key", "account_of_key", "alias"),
    [("alias/team", ACCOUNT, "alias/team"), (ANOTHERS, "999999999999", "alias/theirs")],
)
def test_an_alias_allows_the_keys_that_have_it(who, key, account_of_key, alias):
    policy = own(job(request={"OutputDataConfig": {"KmsKeyId": key}}))[who]
    arn = f"arn:aws:kms:{REGION}:{account_of_key}:key/1"
    for aliases, allowed in (([alias], True), (["alias/x", alias], True), (["alias/x"], False)):
        verdict = evaluate([policy], "kms:Decrypt", arn, {"kms:ResourceAliases": aliases})
        assert (verdict.decision == ALLOWED) == allowed
    assert evaluate([policy], "kms:Decrypt", arn, {}).decision != ALLOWED


def test_preflight_simulates_the_key_of_an_alias(aws, good, monkeypatch):
    """A role that may use that key by its ARN, by its alias, or another key."""
    kms = aws.client("kms")
    key, other = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    kms.create_alias(AliasName="alias/team", TargetKeyId=key)
    wanted = good.replace(request={"OutputDataConfig": {"KmsKeyId": "alias/team"}})
    body = request.dry_run(wanted, PROJECT)
    policy = template.policy(patterns(wanted), "role")
    use = {"Effect": "Allow", "Action": "kms:*"}
    without_keys = [one for one in policy["Statement"] if "kms:Decrypt" not in one["Action"]]
    for statements, allowed in (
        (policy["Statement"], True),
        ([*without_keys, {**use, "Resource": key}], True),
        ([*without_keys, {**use, "Resource": other}], False),
        (without_keys, False),
    ):
        answer = simulation({wanted.role: [{"Statement": statements}]})
        record(monkeypatch, SimulatePrincipalPolicy=answer)
        found = {each.key for each in account.check(wanted, body)}
        denied = {f"role.kms:{name}" for name in ("Encrypt", "Decrypt", "GenerateDataKey")}
        assert found & denied == (set() if allowed else denied)


@pytest.mark.parametrize(
    ("secret", "resource"),
    [
        ("team/wandb", f"{SECRET}team/wandb-??????"),
        (f"{SECRET}team/wandb-AbCdEf", f"{SECRET}team/wandb-AbCdEf"),
        (f"{SECRET}team/wandb", f"{SECRET}team/wandb-??????"),  # an ARN may lack its end
        ("team/wandb:password", f"{SECRET}team/wandb-??????"),
    ],
)
def test_a_reference_allows_one_secret(secret, resource):
    found = table.resources_of(patterns(job(secrets={"KEY": secret})))
    assert found["secrets"] == [resource]


@pytest.mark.parametrize(
    ("channel", "count"),
    [
        ("s3://words-data/", 0),
        ({"s3_data": "s3://words/a.manifest", "s3_data_type": "ManifestFile"}, 1),
        ("s3://words--use1-az4--x-s3/train/", 1),
        (f"s3://team-words-{'a1' * 17}-s3alias/train/", 1),
        (f"s3://arn:aws:s3:{REGION}:{ACCOUNT}:accesspoint/team-words/train/", 1),
    ],
)
def test_places_that_the_policies_do_not_allow_are_reported(channel, count):
    given = patterns(job(channels={"training": channel}))
    assert [each.level for each in template.not_granted(given)] == ["warning"] * bool(count)
    for who in ("role", "caller"):
        assert missing(given, who, template.policy(given, who)) == []


# Actions with resources that a policy allows on all of them: theirs are data sets, not metrics.
WIDE = {"cloudwatch:PutMetricData"}


def test_resources_are_those_that_aws_has_for_an_action():
    """Only actions without resources have `*`, by AWS's reference as cfn-lint has it."""
    cfnlint = pytest.importorskip("cfnlint")
    file = Path(cfnlint.__file__).parent / "data" / "AdditionalSpecs" / "Policies.json"
    services = json.loads(file.read_text(encoding="utf-8"))
    wide, seen = set(), 0
    for given in JOBS.values():
        for need in (need for who in WHO for need in table.needs(patterns(given), who)):
            service, _, name = need.action.lower().partition(":")
            entry = services[service]
            kinds = entry["Actions"][name].get("Resources", [])
            known = [entry["Resources"].get(kind, {}) for kind in kinds]
            forms = [form for kind in known for form in kind.get("ARNFormats", [])]
            for arn in need.resources:
                seen += 1
                if arn == "*":
                    wide |= {need.action} if kinds else set()
                elif forms:
                    assert any(fits(arn, form) for form in forms), (need.action, arn)
    assert wide == WIDE and seen > 500


def fits(arn: str, form: str) -> bool:
    """Whether an ARN has a form of AWS's reference, as in arn:${Partition}:s3:::.*"""
    literal = [re.escape(part) for part in re.split(r"\$\{\w+\}", form.removesuffix(".*"))]
    return bool(re.match("[^:/]*".join(literal), arn))
