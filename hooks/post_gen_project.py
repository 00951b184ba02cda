"""Drops what development left in the template, and says what to do next."""

import json
import os
import shutil
import subprocess
from pathlib import Path

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")

# A template that is worked on holds caches, and cookiecutter copies whatever it finds. Caches only: where a project is
# generated over an older one, everything else is its owner's.
for name in ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"):
    for path in Path().rglob(name):
        shutil.rmtree(path, ignore_errors=True)


def git(*arguments: str) -> str:
    """What git says, or nothing."""
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


# `make update` needs to know which commit of which repository this is; `cruft create` writes the same file itself.
# cookiecutter names the template as it was typed: relative to where it was called, of which PWD is left.
template = Path(os.environ.get("PWD", "."), ANSWERS["_repo_dir"])
commit = git("-C", str(template), "rev-parse", "HEAD")
if commit and git("-C", str(template), "ls-files", "cookiecutter.json"):
    local = Path(os.environ.get("PWD", "."), ANSWERS["_template"]).exists()
    url = str(template.resolve()) if local else git("-C", str(template), "remote", "get-url", "origin")
    answers = {key: value for key, value in ANSWERS.items() if not key.startswith("_")} | {"_template": url}
    link = {
        "template": url,
        "commit": commit,
        "checkout": None,
        "directory": None,
        "context": {"cookiecutter": answers},
    }
    Path(".cruft.json").write_text(json.dumps(link, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

print(
    f"""
{ANSWERS["project_slug"]}/ is ready. Next:

  cd {ANSWERS["project_slug"]}
  make train       an environment, real data, a trained model: about two minutes
  make rehearse    the cluster, played on this machine
  make help        everything else
"""
)
