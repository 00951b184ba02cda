"""Rejects answers that would not work later: one line per problem, and nothing is generated.

Answers to prompts and in `--replay-file` are data. KEY=VALUE arguments are not: cookiecutter
renders them as templates before any hook, and a template may run any code (SECURITY.md).
"""

import json
import keyword
import re
import sys
import unicodedata
from pathlib import Path

# `tojson` writes every quote in an answer as \" and every control character as an escape. The raw
# string keeps them, so no answer can end the string, and no answer is executed.
ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")
# cookiecutter leaves this rendered copy, which holds every answer, in the temporary folder.
Path(__file__).unlink()

# A folder of these names on sys.path, or as the working directory, hides the module that the
# project imports.
DEPENDENCIES = {
    "accelerate", "babel", "boto3", "botocore", "cookiecutter", "data", "datasets", "dist",
    "dotenv", "filelock", "hydra", "jinja2", "jsonargparse", "lightning", "matplotlib",
    "mlflow", "model", "moto", "mpi4py", "numpy", "options", "pandas", "peft", "pexpect",
    "pip", "predict", "psutil", "pyarrow", "pydantic", "pytest", "pytorch_lightning",
    "requests", "rich", "safetensors", "sagemaker", "sagemaker_training", "scipy",
    "setuptools", "sklearn", "smdistributed", "smlightning", "src", "tensorboard", "test",
    "tests", "tokenizers", "torch", "torchmetrics", "torchvision", "tqdm", "train",
    "transformers", "yaml",
}  # fmt: skip
WINDOWS = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{i}" for port in ("com", "lpt") for i in range(10)),
}
LONGEST_SLUG = 40  # SageMaker takes 63 characters for a job name, and the launcher adds a time


ADDRESS = r"[^\s@\"\\<>,;]+@[^\s@\"\\<>,;]+\.[^\s@\"\\<>,;]+"
REGION = r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]"
INSTANCE = r"ml\.[a-z0-9-]+\.[a-z0-9-]+"
COUNT = r"[1-9][0-9]{0,2}"
# As cookiecutter.json lists them; an answer of --replay-file may be any other.
CHOICES = {
    "license": ("MIT", "Apache-2.0", "BSD-3-Clause", "proprietary"),
    "distribution": ("auto", "smddp", "torch_distributed", "pytorchddp", "none"),
    "spot": (False, True),
}


def slug_problems(slug: str) -> list[str]:
    """The problems with the name of folder and job."""
    module = slug.replace("-", "_")
    start = f"project_slug: found {slug!r}"
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", slug):
        return [
            f"{start}; expected lower-case letters and digits, single hyphens or underscores "
            "between them, a letter first, such as language-identification."
        ]
    if len(slug) > LONGEST_SLUG:
        length = len(slug)
        return [f"project_slug: found {length} characters; expected at most {LONGEST_SLUG}."]
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        return [f"{start}, a keyword of Python; expected another name."]
    if module in sys.stdlib_module_names or module in DEPENDENCIES:
        return [f"{start}, a module the project imports; expected a name of your own."]
    if slug in WINDOWS:
        return [f"{start}, not a folder's name on Windows; expected another name."]
    return []


def problems(answers: dict) -> list[str]:
    """The problems with the answers: for each, what was found and what is expected."""
    found = []
    for key, value in answers.items():
        if key.startswith("_"):
            continue
        if key in CHOICES:
            if value not in CHOICES[key]:
                choices = ", ".join(map(str, CHOICES[key]))
                found.append(f"{key}: found {value!r}; expected one of {choices}.")
            continue
        if not isinstance(value, str):
            found.append(f"{key}: found {value!r}; expected text.")
            continue
        # Joiners are part of Persian words and of emoji. Other format characters reorder or hide
        # text.
        if any(
            unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\u200c\u200d"
            for c in value
        ):
            found.append(
                f"{key}: found {value!r}; expected a single line without control characters."
            )
        elif not value.strip():
            found.append(f"{key}: found nothing; expected an answer.")
        elif "{{ '{{' }}" in value or "{{ '{%' }}" in value:
            found.append(f"{key}: found {value!r}; expected plain text, no template syntax.")
        elif len(value) > 200:
            found.append(f"{key}: found {len(value)} characters; expected at most 200.")

    found += slug_problems(str(answers["project_slug"]))
    patterns = {
        "author_email": (ADDRESS, "an address such as you@example.com"),
        "aws_region": (REGION, "a region such as us-east-1"),
        "instance_type": (INSTANCE, "a type such as ml.p4d.24xlarge"),
        "instance_count": (COUNT, "a whole number from 1 to 999"),
    }
    for key, (pattern, expected) in patterns.items():
        answer = str(answers[key])
        if not re.fullmatch(pattern, answer):
            found.append(f"{key}: found {answer!r}; expected {expected}.")
    count, instance = str(answers["instance_count"]), str(answers["instance_type"])
    if answers["distribution"] == "none" and re.fullmatch(COUNT, count) and count != "1":
        found.append(
            f"distribution: found 'none' with {count} instances; expected a launcher, since "
            "without one each host would train its own model as rank 0; or instance_count 1."
        )
    if answers["distribution"] == "smddp" and not re.match(r"ml\.p4de?\.", instance):
        found.append(
            f"distribution: found 'smddp' on {instance}; expected ml.p4d.24xlarge or "
            "ml.p4de.24xlarge, the only instances SMDDP supports; or torch_distributed."
        )
    return found


if __name__ == "__main__":
    if isinstance(ANSWERS["spot"], str) and "_repo_dir" not in ANSWERS:  # both are of 2.2
        print(
            "Nothing was generated: found an old cookiecutter; expected 2.4 or newer, as from "
            "pip install --upgrade cookiecutter.",
            file=sys.stderr,
        )
        sys.exit(1)
    wrong = problems(ANSWERS)
    if wrong:
        print(
            f"Nothing was generated; correct {len(wrong)} answer{'s' * (len(wrong) > 1)}:",
            file=sys.stderr,
        )
        for problem in wrong:
            print(f"  {problem}", file=sys.stderr)
        sys.exit(1)
