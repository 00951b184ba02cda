#!/usr/bin/env bash
# Expected: importing a library leaves sys.excepthook, which prints uncaught errors, as it is.
# True:     `import neuralforecast` imports ray, which replaces it.
# Source:   neuralforecast 3.3.0 with ray 2.60.0, torch 2.13.0.
. "$(dirname "$0")/lib/environment.sh"
packages neuralforecast==3.3.0 ray==2.60.0 torch==2.13.0
seen "before: sys" "after: ray" <<'PY'
import sys

print("before:", sys.excepthook.__module__)
import neuralforecast  # noqa: E402, F401

print("after:", sys.excepthook.__module__.split(".")[0])
PY
