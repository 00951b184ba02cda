#!/usr/bin/env bash
# Expected: offline, resume="must" of a run that lies in the folder goes on after its last step, or is an error, and
#           resume="never" of that id is an error.
# True:     "must", "allow" and "never" all begin at step 0 in a new folder, without an error. Only the server resumes.
# Source:   wandb 0.31.0, wandb.init with WANDB_MODE=offline.
. "$(dirname "$0")/lib/environment.sh"
packages wandb==0.31.0
export WANDB_MODE=offline WANDB_SILENT=true
seen "must: resumed False, step 0" "allow: resumed False, step 0" "never: resumed False, step 0" \
  "folders of run1: 4" <<'PY'
import time
from pathlib import Path

import wandb

with wandb.init(project="p", id="run1") as run:
    for step in range(3):
        run.log({"loss": step}, step=step)
for resume in ("must", "allow", "never"):
    time.sleep(1.1)  # a folder's name has seconds
    with wandb.init(project="p", id="run1", resume=resume) as run:
        print(f"{resume}: resumed {run.resumed}, step {run.step}")
print("folders of run1:", len(list(Path("wandb").glob("offline-run-*-run1"))))
PY
