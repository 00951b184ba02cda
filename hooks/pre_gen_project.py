"""Refuses answers that would not work later: one line per problem, and nothing is generated."""

import json
import keyword
import re
import sys
import unicodedata

# `tojson` writes every quote inside an answer as \" and every control character as an escape, and a raw string keeps
# them so; no answer can end this string, and none is ever executed.
ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")

# A folder of these names on sys.path, or as the working directory, hides the module that the project imports.
DEPENDENCIES = {
    "babel", "boto3", "botocore", "cookiecutter", "data", "datasets", "dist", "dotenv", "filelock", "hydra", "jinja2",
    "jsonargparse", "launch", "lightning", "matplotlib", "model", "moto", "mpi4py", "numpy", "options", "pandas", "pip",
    "predict", "psutil", "pyarrow", "pytest", "pytorch_lightning", "rehearsal", "requests", "rich", "runtime",
    "safetensors", "sagemaker", "sagemaker_training", "scipy", "setuptools", "sklearn", "smdistributed", "src",
    "tensorboard", "test", "tests", "tokenizers", "torch", "torchmetrics", "torchvision", "tqdm", "train",
    "transformers", "yaml",
}  # fmt: skip
WINDOWS = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}
LONGEST_SLUG = 40  # SageMaker takes 63 characters for a job name, and the launcher adds a time


def problems(answers: dict) -> list[str]:
    """What is wrong with the answers, a sentence each: what was found, what is expected."""
    found = []
    for key, value in answers.items():
        if key.startswith("_") or not isinstance(value, str):
            continue
        # Joiners are part of Persian words and of emoji; other format characters reorder or hide what is read.
        if any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\u200c\u200d" for c in value):
            found.append(f"{key}: found {value!r}; expected a single line without control characters.")
        elif not value.strip():
            found.append(f"{key}: found nothing; expected an answer.")
        elif "{{ '{{' }}" in value or "{{ '{%' }}" in value:
            found.append(f"{key}: found {value!r}; expected plain text, no template syntax.")
        elif len(value) > 200:
            found.append(f"{key}: found {len(value)} characters; expected at most 200.")

    slug = answers["project_slug"]
    module = slug.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", slug):
        found.append(
            f"project_slug: found {slug!r}; expected lower-case letters and digits, single hyphens or underscores "
            "between them, a letter first, such as language-identification."
        )
    elif len(slug) > LONGEST_SLUG:
        found.append(f"project_slug: found {len(slug)} characters; expected at most {LONGEST_SLUG}.")
    elif keyword.iskeyword(module) or keyword.issoftkeyword(module):
        found.append(f"project_slug: found {slug!r}, a keyword of Python; expected another name.")
    elif module in sys.stdlib_module_names or module in DEPENDENCIES:
        found.append(f"project_slug: found {slug!r}, a module the project imports; expected a name of your own.")
    elif slug in WINDOWS:
        found.append(f"project_slug: found {slug!r}, not a folder's name on Windows; expected another name.")

    if not re.fullmatch(r"[^\s@\"\\<>,;]+@[^\s@\"\\<>,;]+\.[^\s@\"\\<>,;]+", answers["author_email"]):
        found.append(f"author_email: found {answers['author_email']!r}; expected an address such as you@example.com.")
    if not re.fullmatch(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]", answers["aws_region"]):
        found.append(f"aws_region: found {answers['aws_region']!r}; expected a region such as us-east-1.")
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", answers["instance_type"]):
        found.append(f"instance_type: found {answers['instance_type']!r}; expected a type such as ml.p4d.24xlarge.")
    count = str(answers["instance_count"])
    if not re.fullmatch(r"[1-9][0-9]{0,2}", count):
        found.append(f"instance_count: found {count!r}; expected a whole number from 1 to 999.")
    elif answers["distribution"] == "none" and count != "1":
        found.append(f"distribution: found 'none' with {count} instances; expected a launcher, since several hosts "
                     "without one would each train alone as rank 0; or instance_count 1.")  # fmt: skip
    if answers["distribution"] == "smddp" and not re.match(r"ml\.p4de?\.", answers["instance_type"]):
        found.append(f"distribution: found 'smddp' on {answers['instance_type']}; expected ml.p4d.24xlarge or "
                     "ml.p4de.24xlarge, the only instances SMDDP supports; or torch_distributed.")  # fmt: skip
    return found


if __name__ == "__main__":
    wrong = problems(ANSWERS)
    if wrong:
        print(f"Nothing was generated; {len(wrong)} answer{'s' * (len(wrong) > 1)} to mend:", file=sys.stderr)
        for problem in wrong:
            print(f"  {problem}", file=sys.stderr)
        sys.exit(1)
