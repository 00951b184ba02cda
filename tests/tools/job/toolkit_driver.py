"""Starts a script as SageMaker's toolkit does: `toolkit_driver.py HYPERPARAMETERS`, a JSON file.

The file lists hyperparameters as CreateTrainingJob has them, one table for each start. The script
gets them by the toolkit's own code, and appends its arguments to `arguments.jsonl`.
"""

import json
import os
import sys
from pathlib import Path

BASE = Path.cwd()
CONFIGURATION = {
    "resourceconfig": {"current_host": "a", "hosts": ["a"], "network_interface_name": "lo"},
    "inputdataconfig": {},
}
SCRIPT = """
import json, sys
with open("arguments.jsonl", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
"""


def main() -> None:
    os.environ["SAGEMAKER_BASE_DIR"] = str(BASE)
    for name in ("code", "input/config"):
        (BASE / name).mkdir(parents=True, exist_ok=True)
    (BASE / "code" / "train.py").write_text(SCRIPT)
    for name, content in CONFIGURATION.items():
        (BASE / "input/config" / f"{name}.json").write_text(json.dumps(content))
    from sagemaker_training import environment, process

    for table in json.loads(Path(sys.argv[1]).read_text()):
        (BASE / "input/config/hyperparameters.json").write_text(json.dumps(table))
        arguments = environment.Environment().to_cmd_args()
        process.ProcessRunner("train.py", arguments, {}, 1).run(capture_error=True)


main()
