"""submit uploads src/ without links, keys and hidden files; preflight finds its secrets."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import boto3
import pytest

from small_job import PROJECT
from smlightning_sagemaker.job import request, sending
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import secrets, source
from smlightning_sagemaker.project import Project

pytest_plugins = "moto_account"


# Written in parts: whoever scans this repository for secrets finds none.
KEY = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\n"
WANDB = "0123456789abcdef" * 2 + "01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiJzb21lYm9keSJ9." + "c2lnbmF0dXJlc2lnbmF0dXJl"
HIDDEN = {
    ".git/config": "[remote]\n  url = https://me:" + "pa55word@example.com/a.git\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    ".npmrc": "//registry.npmjs.org/:_authToken=npm_" + "a1" * 18,
    ".pypirc": "[pypi]\npassword = pypi-" + "AgEIcHlwaS5vcmcCJDU2",
    ".env": f"WANDB_API_KEY={WANDB}\n",
    ".netrc": "machine example.com login me password pa55word\n",
    ".aws/credentials": "[default]\naws_access_key_id = x\n",
    ".ipynb_checkpoints/train-checkpoint.py": "",
    "tools/.cache/token": "hf_" + "b2" * 17,
}
SECRETS = {
    "token.txt": "glpat-" + "c3D4" * 5,
    "settings.py": f'import os\nWANDB_API_KEY = "{WANDB}"\n',
    "jwt.json": f'{{"session": "{JWT}"}}',
    "gcp.json": '{"type": "service_account", "private_key": "-----BEGIN ' + 'PRIVATE KEY-----"}',
    "server.pem": KEY,
    "train.ipynb": json.dumps({"source": [f'\n%env WANDB_API_KEY="{WANDB}"']}),
}
KEYS = {"id_rsa": KEY, "conf/store.p12": "x", "credentials.json": "{}"}
LINKS = {"link.txt": "/etc/passwd", "linkdir": "/etc/ssl", "gone.py": "nowhere"}
INNOCENT = {
    "conf/model.yaml": "token: <eos>\npad_token: '[PAD]'\nsort_key: number_of_tokens\n",
    "ca.pem": "-----BEGIN CERTIFICATE-----\n",
    "extra.py": 'password = getpass("password: ")\naddress = f"https://{user}:{token}@{host}"\n',
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The template's own src/, and files and links that no archive should hold."""
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT.src, tmp_path / "src", ignore=left_out)
    shutil.copy(PROJECT.job_file, tmp_path)
    src = tmp_path / "src"
    for name, text in {**HIDDEN, **SECRETS, **KEYS, **INNOCENT}.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text(text)
    for name, target in LINKS.items():
        (src / name).symlink_to(target)
    monkeypatch.setenv("SMLIGHTNING_PROJECT", str(tmp_path))
    return Project(tmp_path)


# The SDK's estimator uploads them.
WARNED = {
    *(f"src/{name}" for name in (".git", ".npmrc", ".pypirc", ".env", ".netrc", ".aws")),
    *("src/.ipynb_checkpoints", "src/tools/.cache"),
}
REPORTED = {f"src/{name}" for name in (*SECRETS, *KEYS, *LINKS)}


def test_links_keys_and_hidden_files_are_not_uploaded(
    aws: boto3.Session, good: Job, planted: Project
) -> None:
    checks = (secrets.in_files, source.complete, source.left_out, source.hidden, source.size)
    found = [finding for check in checks for finding in check(good, {}, planted)]
    assert {finding.key for finding in found if finding.level == "error"} == REPORTED
    assert {finding.key for finding in found if finding.level == "warning"} == WARNED
    of_template = {path.name for path in PROJECT.src.iterdir() if path.is_file()}

    uri = sending.upload(good, planted, request.dry_destination(good), "job", {})
    key = uri.removeprefix("s3://language-id/")
    body = aws.client("s3").get_object(Bucket="language-id", Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        sent = {member.name.removeprefix("./") for member in tar if not member.isdir()}
    assert sent == {*of_template, *INNOCENT, *SECRETS}


@pytest.mark.parametrize("name", ["smlightning.py", "setup.py"])
def test_a_module_of_src_may_not_replace_the_package_or_train(
    good: Job, tmp_path: Path, name: str
) -> None:
    (tmp_path / "src").mkdir()
    for file in ("train.py", "requirements.txt", name):
        (tmp_path / "src" / file).touch()
    (found,) = source.complete(good, {}, Project(tmp_path))
    assert (found.level, found.key) == ("error", f"src/{name}")


def test_the_templates_own_code_holds_no_secret(good: Job) -> None:
    assert not list(secrets.in_files(good, {}, PROJECT))


FORMATS = [
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ASIA" + "ABCDEFGHIJKLMNOP",
    "-----BEGIN " + "RSA PRIVATE KEY-----",
    "-----BEGIN " + "PRIVATE KEY-----",
    "xoxb-" + "123456789012-1234567890123-abc",
    "xapp-" + "1-A0123-456-abc",
    "https://hooks.slack.com/" + "services/T000/B000/abc",
    "hf_" + "aB3" * 12,
    "ghp_" + "aB3" * 12,
    "github_pat_" + "11ABC_" + "aB3" * 12,
    "sk-" + "aB3" * 16,
    "sk-proj-" + "aB3" * 16,
    "sk_live_" + "aB3" * 8,
    "glpat-" + "aB3x" * 5,
    "AIza" + "aB3x-" * 7,
    "npm_" + "aB3" * 12,
    "pypi-" + "AgEIcHlwaS5vcmc" + "aB3" * 12,
    JWT,
    "dapi" + "0123456789abcdef" * 2,
    "SG." + "aB3x" * 5 + "." + "aB3x" * 10,
    "dop_v1_" + "0123456789abcdef" * 4,
    "hvs." + "aB3x" * 6,
    "https://a.blob.core.windows.net/b?sv=1&sig=" + "aB3x" * 10 + "%3D",
    "DefaultEndpointsProtocol=https;AccountKey=" + "aB3x" * 21 + "==",
    "123456789:" + "AA" + "aB3x-" * 6 + "abc",
    "https://me:" + "pa55word@example.com/simple",
    "GOCSPX-" + "aB3x" * 7,
    "https://" + "aB3x" * 6 + "@packages.example.com/me/",
    "sk-" + "0123456789abcdef" * 2,
    "sk-ant-" + "api03-" + "aB3x-" * 18,
    "sk-or-v1-" + "0123456789abcdef" * 4,
    "gsk_" + "aB3x" * 13,
    "nvapi-" + "aB3x_" * 13,
    "wandb_v1_" + "aB3x" * 19,
    "KGAT_" + "0123456789abcdef" * 2,
    "ABSK" + "aB3x" * 30,
    "lsv2_pt_" + "0123456789abcdef" * 2 + "_0123456789",
    "abc8Q~" + "aB3x" * 8 + "ab",
]


@pytest.mark.parametrize("text", FORMATS)
def test_a_secret_is_known_by_its_form_under_any_name(text: str) -> None:
    for line in (text, f'x = "{text}"', f"x: {text}"):
        assert secrets.forms(line)


NAMES = [
    "password", "DB_PASS", "db_password", "passphrase", "pwd", "DB_PWD", "auth", "private_key",
    "wandb_key", "WANDB_API_KEY", "secretkey", "secret_key", "signing_key", "apikey", "api-key",
    "accessKey", "client_secret", "token", "authToken", "credentials",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert secrets.has_secret_name(f"environment.{name}", WANDB)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("password", "tr0ub4dor-and-3"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"),
        ("aws_secret_access_key", "wJalrXUtnFEMIxKxMDENGx" + "bPxRfiCYEXAMPLEKEY"),
        ("DB_PASSWORD", "CorrectHorseBattery"),
        ("DB_PASSWORD", "Tr0ub/dor"),
        ("DB_PASSWORD", "abcdef1!"),
        ("DB_PASSWORD", "myTr0ubadour"),
        ("DB_PASS", "abcdefgh"),
        ("dbPass", "abcdefgh"),
    ],
)
def test_a_password_needs_no_digit_and_may_have_slashes(name: str, text: str) -> None:
    assert secrets.has_secret_name(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("eos_token", "<|endoftext2|>"),
        ("max_tokens", "100000000"),
        ("token_type", "bearer_2_token"),
        ("sort_key", "sentence_number_1"),
        ("text_key", "sentence1"),
        ("DB_PASSWORD", "/run/secrets/db1"),
        ("DB_PASSWORD", "ssm:/team/db1"),
        ("API_KEY", "your-api-key-1"),
        ("WANDB_API_KEY_FILE", "wandb0key"),
        ("SECRET_ARN", "arn:aws:secretsmanager:us-east-1:123456789012:secret:db-AbCdEf"),
        ("monkey", "banana123456"),
        ("compass", "north_1234"),
        ("AUTH_REGION", "us-east-1"),
        ("AUTH_METHOD", "oauth2-pkce"),
        ("SECRET_STORE", "vault-v2-eu"),
        ("PASSWORD_HASHER", "pbkdf2_sha256"),
        ("API_KEY_HEADER", "X-Api-Key-V2"),
        ("pad_token", "PADDING00"),
        ("auth", "team-2-eu-west"),
        ("first_pass", "sequential"),
        ("WANDB_API_KEY", "$WANDB_KEY_OF_TEAM_1"),
        ("X", "hf_dataset_to_torch_iterable_dataset"),
        ("X", "sk-learn-style-cross-validation-of-splits-2"),
        ("X", "hvs.shape_of_the_whole_grid.npm_run_build_of_the_page"),
        ("X", "hvs.encode_hyperdimensional_vectors_v2"),
        ("X", "glrt-detector-false-alarm-1e-3"),
        ("S3_KMS_KEY", "mrk-" + "0123456789abcdef" * 2),
        ("MODEL_KEY", "models/" + "0123456789abcdef" * 2 + "/best.pt"),
        ("CACHE_KEY", "0123456789abcdef" * 2),
        ("INDEX", "ssh://" + "abcd" * 6 + "@host/path"),
        ("INDEX", "https://${TOKEN_OF_THE_TEAMS_INDEX_1}@packages.example.com/me/"),
    ],
)
def test_the_name_or_place_of_a_secret_is_not_a_secret(name: str, text: str) -> None:
    assert not secrets.has_secret_name(name, text)
    assert not secrets.forms(f'{name} = "{text}"')
