"""Says what to do next."""

import json

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")

print(
    f"""
{ANSWERS["project_slug"]}/ is ready. Next:

  cd {ANSWERS["project_slug"]}
  make train       an environment, real data, a trained model: about two minutes
  make rehearse    the cluster, played on this machine
  make help        everything else
"""
)
