#!/usr/bin/env bash
# Expected: in torch's DataLoader each worker has random numbers of its own, and each epoch others.
# True:     a MONAI transform after set_random_state gives the same noise in each worker, and again in each epoch: every
#           worker begins with a copy of one state. MONAI's own DataLoader gives each worker a seed.
# Source:   monai 1.6.1 with torch 2.13.0, transforms/transform.py (Randomizable), data/dataloader.py.
. "$(dirname "$0")/lib/environment.sh"
packages monai==1.6.1 torch==2.13.0
seen "torch's loader: workers differ False, epochs differ False" \
  "monai's loader: workers differ True, epochs differ True" <<'PY'
import monai
import numpy as np
import torch

noise = monai.transforms.RandGaussianNoise(prob=1.0)
noise.set_random_state(0)
rows = monai.data.Dataset([np.zeros(1, dtype=np.float32) for _ in range(2)], noise)
for name, loader in (("torch", torch.utils.data.DataLoader), ("monai", monai.data.DataLoader)):
    torch.manual_seed(0)
    epochs = [[float(batch) for batch in loader(rows, num_workers=2)] for _ in range(2)]
    workers_differ = epochs[0][0] != epochs[0][1]
    print(f"{name}'s loader: workers differ {workers_differ}, epochs differ {epochs[0] != epochs[1]}")
PY
