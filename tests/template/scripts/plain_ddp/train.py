"""PyTorch's own way to train on several GPUs: torchrun, NCCL, DistributedDataParallel."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to(gpu)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = DistributedDataParallel(net, device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(90, 2)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.cuda(gpu)), y.to(f"cuda:{gpu}"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
