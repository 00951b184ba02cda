"""Whether the ranks add up numbers correctly, and how fast: asked before the first step."""

import time

import torch
import torch.distributed

from runtime.cluster import ClusterError


def verify_all_reduce(rank: int, world_size: int, device: torch.device) -> None:
    """Sum numbers whose sum is known; rank 0 prints the bandwidth, 2 (n−1)/n × bytes / second (nccl-tests' busbw).

    Raises:
        ClusterError: the sum is wrong on this rank.
    """
    buffer = torch.empty(2**20 if device.type == "cpu" else 2**24, device=device)  # 4 or 64 MiB
    expected = world_size * (world_size + 1) // 2
    seconds = []
    for _ in range(3):
        buffer.fill_(rank + 1)
        start = time.perf_counter()
        torch.distributed.all_reduce(buffer)
        low, high = buffer.min().item(), buffer.max().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        if not low == high == expected:
            raise ClusterError(
                f"all-reduce over {world_size} ranks gave {low:g} to {high:g} on rank {rank}, expected {expected}; "
                f"{torch.distributed.get_backend()} does not work between these hosts: take another backend or image."
            )
    if rank == 0:
        rate = 2 * (world_size - 1) / world_size * buffer.nbytes / min(seconds) / 1e9
        backend = torch.distributed.get_backend()
        print(f"all-reduce over {world_size} ranks verified, {rate:.2f} GB/s bus bandwidth ({backend})", flush=True)
