#!/usr/bin/env bash
# Expected: importing a library leaves torch's global switches as they are.
# True:     `import scvi` turns torch.backends.cudnn.benchmark on: cuDNN then times its kernels to choose one,
#           also for models that are not scvi's.
# Source:   scvi-tools 1.4.2 with torch 2.13.0, scvi/module/_totalvae.py and others.
. "$(dirname "$0")/lib/environment.sh"
packages scvi-tools==1.4.2 torch==2.13.0
seen "before: False" "after: True" <<'PY'
import torch

print("before:", torch.backends.cudnn.benchmark)
import scvi  # noqa: E402, F401

print("after:", torch.backends.cudnn.benchmark)
PY
