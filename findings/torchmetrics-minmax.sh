#!/usr/bin/env bash
# Expected: MinMaxMetric begins again after reset(), and persistent(True) puts its extremes in the checkpoint.
# True:     reset() keeps them, so after a reset at each epoch they are those of the run; and the state is empty even
#           after persistent(True), so a resumed run begins with none.
# Source:   torchmetrics 1.9.0 with torch 2.13.0, wrappers/minmax.py.
. "$(dirname "$0")/lib/environment.sh"
packages torchmetrics==1.9.0 torch==2.13.0
seen "1.0: min 1.0, max 1.0" "3.0: min 1.0, max 3.0" "2.0: min 1.0, max 3.0" "state: []" \
  "MeanMetric's state: ['mean_value', 'weight']" <<'PY'
import torch
from torchmetrics import MeanMetric
from torchmetrics.wrappers import MinMaxMetric

metric = MinMaxMetric(MeanMetric())
metric.persistent(True)
for value in (1.0, 3.0, 2.0):
    metric.update(torch.tensor(value))
    result = metric.compute()
    print(f"{value}: min {float(result['min'])}, max {float(result['max'])}")
    metric.reset()
print("state:", list(metric.state_dict()))
mean = MeanMetric()
mean.persistent(True)
print("MeanMetric's state:", list(mean.state_dict()))
PY
