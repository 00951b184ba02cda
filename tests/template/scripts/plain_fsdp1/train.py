"""FSDP's first version: shards on every rank, the whole model saved by the first."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    model = FSDP(net, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(96, 2)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    for x, y in DataLoader(data, batch_size=8, sampler=sampler):
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
    whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, os.environ["SM_MODEL_DIR"] + "/model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
