#!/usr/bin/env bash
# Expected: a hyperparameter that is sent as a text reaches the script as that text.
# True:     sagemaker-training reads each value as JSON first. A version "1.10" arrives as 1.1, a commit "7e10" as
#           70000000000.0, "null" as an empty text; and of LR and lr, one variable SM_HP_LR is left.
# Source:   sagemaker-training 5.1.4, environment.py (read_hyperparameters), mapping.py (to_cmd_args, to_env_vars).
. "$(dirname "$0")/lib/environment.sh"
packages sagemaker-training==5.1.4
seen "--LR 1 --commit 70000000000.0 --lr 2 --none  --revision 1.1" "SM_HP_LR=2" <<'PY'
import json
import os
from pathlib import Path

os.environ["SAGEMAKER_BASE_DIR"] = os.getcwd()
values = {"revision": "1.10", "commit": "7e10", "none": "null", "LR": "1", "lr": "2"}
path = Path("input/config/hyperparameters.json")
path.parent.mkdir(parents=True)
path.write_text(json.dumps(values))

from sagemaker_training import environment, mapping

received = environment.read_hyperparameters()
print(*mapping.to_cmd_args(received))
variables = mapping.to_env_vars({f"hp_{name}": value for name, value in received.items()})
print("SM_HP_LR=" + variables["SM_HP_LR"])
PY
