#!/usr/bin/env bash
# Expected: importing a library leaves multiprocessing as it is, and the script chooses how workers start.
# True:     `import chemprop` fixes the start method; a later set_start_method("spawn") is an error.
# Source:   chemprop 2.3.1 with torch 2.13.0, lightning 2.6.6, on Linux.
. "$(dirname "$0")/lib/environment.sh"
packages chemprop==2.3.1 torch==2.13.0 lightning==2.6.6
seen "before: None" "after: fork" "RuntimeError: context has already been set" <<'PY'
import multiprocessing

import torch  # noqa: F401

print("before:", multiprocessing.get_start_method(allow_none=True))
import chemprop  # noqa: E402, F401

print("after:", multiprocessing.get_start_method(allow_none=True))
try:
    multiprocessing.set_start_method("spawn")
except RuntimeError as error:
    print(f"RuntimeError: {error}")
PY
