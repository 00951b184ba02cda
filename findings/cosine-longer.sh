#!/usr/bin/env bash
# Expected: a run that resumes with a longer schedule, CosineAnnealingLR(T_max=8) after 4 of 4 epochs, follows the
#           longer one, or keeps the lowest rate.
# True:     the state of the schedule holds T_max, so the old 4 replaces the new 8, and the learning rate rises again to
#           its first value. OneCycleLR in the same place is an error that gives the number of steps.
# Source:   torch 2.13.0, optim/lr_scheduler.py (LRScheduler.load_state_dict).
. "$(dirname "$0")/lib/environment.sh"
packages torch==2.13.0 numpy
seen "4 epochs: [0.854, 0.5, 0.146, 0.0]" "resumed with T_max 8: [0.146, 0.5, 0.854, 1.0], T_max is 4" \
  "OneCycleLR: Tried to step 5 times. The specified number of total steps is 4" <<'PY'
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR


def new(schedule, *options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return optimizer, schedule(optimizer, *options)


def rates(optimizer, schedule, number):
    for _ in range(number):
        optimizer.step()
        schedule.step()
        yield round(schedule.get_last_lr()[0], 3)


def longer(schedule, old, new_options, number):
    first, second = new(schedule, *old), new(schedule, *new_options)
    before = list(rates(*first, number))
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    return before, second


before, resumed = longer(CosineAnnealingLR, (4,), (8,), 4)
print("4 epochs:", before)
print(f"resumed with T_max 8: {list(rates(*resumed, 4))}, T_max is {resumed[1].T_max}")
_, resumed = longer(OneCycleLR, (1.0, 4), (1.0, 8), 3)
try:
    list(rates(*resumed, 4))
except ValueError as error:
    print(f"OneCycleLR: {error}")
PY
