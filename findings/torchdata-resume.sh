#!/usr/bin/env bash
# Expected: a torchdata node that was stopped in the second epoch and resumed gives the rest of that epoch.
# True:     SamplerWrapper over a RandomSampler with a generator gives the rest of another order: its state holds how
#           many rows were read, not the generator. Rows come twice, others never. The first epoch resumes exactly.
# Source:   torchdata 0.11.0 with torch 2.13.0, nodes/samplers/sampler_wrapper.py (get_state).
. "$(dirname "$0")/lib/environment.sh"
packages torchdata==0.11.0 torch==2.13.0 numpy
seen "epoch 0: the same rest" "epoch 1: another rest; read twice [1], never [3]" <<'PY'
import torch
from torch.utils.data import RandomSampler
from torchdata.nodes import Loader, SamplerWrapper


def new():
    generator = torch.Generator().manual_seed(0)
    return Loader(SamplerWrapper(RandomSampler(range(6), generator=generator)))


for epoch in range(2):
    loader = new()
    for _ in range(epoch):
        list(loader)
    rows = iter(loader)
    read = [next(rows) for _ in range(3)]
    state = loader.state_dict()
    rest = list(rows)
    resumed = new()
    resumed.load_state_dict(state)
    seen = list(resumed)
    twice = sorted(set(seen) & set(read))
    never = sorted(set(range(6)) - set(seen) - set(read))
    same = "the same rest" if seen == rest else f"another rest; read twice {twice}, never {never}"
    print(f"epoch {epoch}: {same}")
PY
