"""Sort points into two halves with DistributedDataParallel: torchrun --nproc_per_node 2 train.py

It has the slips of many public scripts, which test_other_scripts.py mends one by one.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--shuffle", action="store_true", help="a new order in each epoch")
    parser.add_argument("--resume", metavar="PATH", help="a checkpoint to go on from")
    return parser.parse_args()


def download(folder: Path) -> Path:
    """The data set, which an archive on the network would hold."""
    folder.mkdir(parents=True, exist_ok=True)
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    torch.save((x, (x.sum(1) > 0).long()), folder / "points.pt")
    return folder / "points.pt"


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    path = download(Path("data"))
    points = TensorDataset(*torch.load(path))
    sampler = DistributedSampler(points, shuffle=args.shuffle)
    loader = DataLoader(points, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    first = 0
    if args.resume:
        state = torch.load(args.resume)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        losses = [step(model, optimizer, *batch) for batch in loader]
        print(f"epoch {epoch}, loss {sum(losses) / len(losses):.4f}")
        if rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch + 1}, "checkpoint.pt")
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    args = parse()
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
