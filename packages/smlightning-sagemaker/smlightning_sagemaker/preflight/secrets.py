"""Secrets where they would be seen: in what the AWS console shows of a job, and in src/."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning import hub
from smlightning_sagemaker.findings import Finding, error
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements, sent
from smlightning_sagemaker.project import Project

# Random characters have digits, and no separators: the name of a function has words.
RANDOM = r"(?=[A-Za-z]*\d)[A-Za-z0-9]{24}"
DIGIT = r"(?=[A-Za-z_-]*\d)"
MIXED = rf"{DIGIT}(?=[a-z\d_-]*[A-Z])"  # hyphenated words are of one case
# Texts that are secrets by their form, as their issuers document it. A pattern that begins with
# letters, and not with \b, is found fast in a large file.
FORMATS = (
    r"A[KS]IA[0-9A-Z]{16}",  # AWS
    r"-----BEGIN [A-Z ]*PRIVATE KEY",
    r"PuTTY-User-Key-File-\d",
    r"xox[abeprs]-[\w-]{10}",  # Slack
    r"xapp-\d-\w",
    r"hooks\.slack\.com/(services|workflows)/\w",
    r"discord(app)?\.com/api/webhooks/\d",
    r"\b(hf|api_org)_[A-Za-z0-9]{30}",  # Hugging Face
    r"gh[pousr]_[A-Za-z0-9]{30}",  # GitHub
    r"github_pat_[A-Za-z0-9]{5,}_[A-Za-z0-9]{20}",
    rf"\bsk[-_](?:[a-z][a-z0-9]{{1,11}}-){{0,3}}{RANDOM}",  # OpenAI, OpenRouter and others
    r"\bsk-[\w-]{10,}T3BlbkFJ",
    r"\bsk-ant-[a-z]+\d\d-[\w-]{20}",  # Anthropic
    r"\bnvapi-[\w-]{60}",  # NVIDIA
    rf"\b(xai|pplx|tvly(-dev)?)-{RANDOM}",  # xAI, Perplexity, Tavily
    rf"\b(gsk|r8|ntn|KGAT|pcsk(_\w{{4,6}})?)_{RANDOM}",  # Groq, Replicate, Notion, Kaggle, Pinecone
    r"\bwandb_v1_\w{40}",
    r"\blsv2_(pt|sk)_[0-9a-f]{32}",  # LangSmith
    r"\bABSK[A-Za-z0-9+/]{100}",  # Amazon Bedrock
    r"\bbedrock-api-key-[A-Za-z0-9+/]{40}",
    r"\bdckr_(pat|oat)_[\w-]{20}",  # Docker
    r"\dQ~[\w.~-]{31}",  # an application of Azure
    r"[sr]k_(live|test)_[A-Za-z0-9]{16}",  # Stripe
    rf"\bgl(pat|dt|rt|cbt|ptt|soat|ffct|oas|imt|agent|wt)-{MIXED}[\w-]{{20}}",  # GitLab
    r"AIza[\w-]{35}",  # Google
    r"GOCSPX-[\w-]{20}",
    r"ya29\.[\w-]{20}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-AgE[\w-]{20}",
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10}",  # a JSON Web Token
    r"dapi[0-9a-f]{32}",  # Databricks
    rf"\bSG\.{DIGIT}[\w-]{{16,}}\.{DIGIT}[\w-]{{16}}",  # SendGrid
    r"do[opr]_v1_[0-9a-f]{40}",  # DigitalOcean
    rf"\bhv[sbr]\.{MIXED}[\w-]{{20}}",  # Vault
    r"[?&]sig=[\w%+/-]{40}",  # a shared access signature of Azure
    r"AccountKey=[\w+/]{40}",
    r"SharedAccessKey=[\w+/]{40}",
    r"(?i:wandb_?(api_?)?key)\W{1,9}[0-9a-f]{40}\b",  # Weights & Biases
    r"\b\d{8,10}:AA[\w-]{32}",  # Telegram
    r"shp(at|ca|pa|ss)_[0-9a-f]{32}",  # Shopify
    # A password in an address, but no place for one: {password}, %s, $PASSWORD, <password>.
    r"://[^/\s:@\"'{}<>$]+:(?!pass(word)?@|\*+@)[^/\s@\"'{}<>$%]+@",
    r"://(?=[^/\s@]{0,99}\d)\w{20,}@",  # a token only, as for Gemfury and Azure DevOps
)
# Names in lower case, with underscores between their words.
PASSWORD_NAME = re.compile(
    r"(^|_)((password|passwd|passphrase|passcode|pwd)s?|(db|user)_?pass)(_|$)"
)
SECRET_NAME = re.compile(r"(^|_)(secret|token|auth|credentials?|\w*key)(_|$)")
# Names of a secret's place or kind: SECRET_ARN, TOKEN_FILE, EOS_TOKEN_ID.
REFERENCE_NAME = re.compile(
    r"_(arns?|names?|ids?|files?|path|folder|dir|ur[il]|key_spec|env|var|field|column|type|policy"
    r"|region|method|store|header|hasher)$"
)
ONE_WORD = re.compile(r"(?!arn:|ssm:|\.*/|~|\$|\w+://)[^\s<>|\[\]{}]{8,}")
PLACEHOLDER = re.compile(r"(?i)x+|\*+|changeme|(your|my|example|dummy|fake|test)[_-][\w-]*")
CHARACTERS = re.compile(r"(?=(\w*?\d){3})(?=(\w*?[A-Za-z]){3})[A-Za-z0-9]{16,}|[A-Za-z0-9+/]{40}")
# Keys that are no secrets: of an object, a cache or a column, and those of KMS by their forms.
OTHER_KEY = re.compile(
    r"(^|_)(kms|cache|model|object|s3|file|data|dataset|sort|primary|foreign|partition|group|hash"
    r"|lookup|column|public|checkpoint|artifact|idempotency|config)_keys?$"
)
NO_SECRET = re.compile(r"(mrk-)?[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|alias/.*")
IN_STORE = "keep it in Secrets Manager, and set its name in [secrets]"
SHOWN = "looks like a secret, and everybody who may see the job sees it"


def visible(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Secrets in the parts of a job that DescribeTrainingJob and the AWS console show."""
    # These hold the name of a secret; the secret itself is the mistake.
    names = {f"environment.{hub.SECRET_FOR}{each}": f"secrets.{each}" for each in job.secrets}
    for key, text in sent.values(job, request).items():
        if key in names:
            if forms(text):
                hint = "keep it in Secrets Manager, and give the name of that secret here"
                yield error(names[key], SHOWN, hint)
        elif forms(text) or has_secret_name(key, text):
            yield error(key, SHOWN, hint_for(key.rpartition(".")[2]))


def in_files(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Secrets in the files of src/, which go to S3 and to each host, by their form.

    `make lint` finds passwords that code assigns to a name (ruff's S105 to S107).
    """
    for name, text in sent.files(project).items():
        if found := forms(text):
            line = text.count("\n", 0, min(found)) + 1
            of_pip = re.search(r"requirements[^/]*\.(txt|in)$|pip\.conf$", name)
            hint = requirements.WITHOUT_LOGIN if of_pip else IN_STORE
            problem = f"line {line} looks like a secret, and would be uploaded"
            yield error(name, problem, hint)


def hint_for(variable: str) -> str:
    """The hint for a secret in a variable; pip reads its own before processes read secrets."""
    if requirements.BEFORE_TRAINING.fullmatch(variable) or requirements.PROXY.fullmatch(variable):
        return f"for pip, {requirements.WITHOUT_LOGIN}"
    return f'{IN_STORE}: VARIABLE = "name of the secret"'


def forms(text: str) -> list[int]:
    """Positions in a text at which the first secret of each form begins."""
    found = (re.search(pattern, text) for pattern in FORMATS)
    return [match.start() for match in found if match]


def has_secret_name(key: str, text: str) -> bool:
    """Whether the name of a value says that it is a secret, and the value can be one.

    Not a secret: its name, ARN, address or path; a word of a vocabulary, as </s>; a placeholder, as
    "your-token".
    """
    name = words(key.rpartition(".")[2])
    if REFERENCE_NAME.search(name) or not ONE_WORD.fullmatch(text) or PLACEHOLDER.fullmatch(text):
        return False
    if PASSWORD_NAME.search(name):
        return True
    is_key = OTHER_KEY.search(name) or ("kms" in name and NO_SECRET.fullmatch(text))
    return bool(SECRET_NAME.search(name) and CHARACTERS.search(text) and not is_key)


def words(name: str) -> str:
    """A name in lower case with underscores between its words: db_password of dbPassword."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()
