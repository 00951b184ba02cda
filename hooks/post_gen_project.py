"""Drops what development left in the template, and says what to do next."""

import json
import shutil
from pathlib import Path

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")

# A template that is worked on holds caches, and cookiecutter copies whatever it finds. Caches only: where a project is
# generated over an older one, everything else is its owner's.
for name in ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"):
    for path in Path().rglob(name):
        shutil.rmtree(path, ignore_errors=True)

print(
    f"""
{ANSWERS["project_slug"]}/ is ready. Next:

  cd {ANSWERS["project_slug"]}
  make train       an environment, real data, a trained model: about two minutes
  make rehearse    the cluster, played on this machine
  make help        everything else
"""
)
