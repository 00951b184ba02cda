"""Deletes caches, names the project in its notebook, notes the template, and prints next steps."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")
# cookiecutter leaves this rendered copy, with every answer, in the temporary folder.
Path(__file__).unlink()

# cookiecutter copies everything, and a template under development has caches. Delete only caches:
# if a project is generated over an older one, everything else is its owner's.
CACHES = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "*.egg-info")
for name in CACHES:
    for path in Path().rglob(name):
        shutil.rmtree(path, ignore_errors=True)

# The notebook is copied as it is, with the outputs of a project with default answers.
notebook = Path("launch.ipynb")
text = notebook.read_text(encoding="utf-8")
name = ANSWERS["project_slug"][:47].replace("_", "-")  # as in job.toml
text = text.replace("language-identification", name)
text = text.replace("us-east-1", ANSWERS["aws_region"])
notebook.write_text(text, encoding="utf-8", newline="\n")


def git(*arguments: str) -> str:
    """The output of git; empty if it fails."""
    try:
        found = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def without_credentials(url: str) -> str:
    """A git address without user, password and query, each of which may be a token.

    ssh keeps its user, which the server needs.
    """
    parts = urlsplit(url)
    if not parts.netloc:  # a folder, or git@host:path
        return url
    user, _, host = parts.netloc.rpartition("@")
    if user and parts.scheme.endswith("ssh"):
        host = f"{user.partition(':')[0]}@{host}"
    return parts._replace(netloc=host, query="", fragment="").geturl()


# `make update` asks cruft, which wants to know the repository and commit of the template; cruft,
# where it generates, notes both itself. cookiecutter names a folder as it was typed: relative to
# where it was called, of which PWD is left.
called_from = os.environ.get("PWD", ".")
template = Path(called_from, ANSWERS.get("_repo_dir", "nowhere"))
if git("-C", str(template), "ls-files", "cookiecutter.json"):
    local = Path(called_from, ANSWERS["_template"]).exists()
    url = (
        str(template.resolve())
        if local
        else without_credentials(git("-C", str(template), "remote", "get-url", "origin"))
    )
    answers = {key: value for key, value in ANSWERS.items() if not key.startswith("_")}
    link = {
        "template": url,
        "commit": git("-C", str(template), "rev-parse", "HEAD"),
        "checkout": None,
        "directory": None,
        "context": {"cookiecutter": {**answers, "_template": url}},
    }
    Path(".cruft.json").write_text(
        json.dumps(link, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )

print(
    f"""
{ANSWERS["project_slug"]}/ is ready. Next:

  cd {ANSWERS["project_slug"]}
  make train       installs, trains on real data, saves a model: minutes
  make rehearse    simulates the cluster on this machine
  make help        everything else

The template's folder examples/ has files for other tasks and for LoRA.
"""
)
