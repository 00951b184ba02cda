"""Before the first step: whether the ranks add up numbers correctly, and how fast."""

import time

import torch
import torch.distributed

from smlightning.cluster.location import ClusterError

REPETITIONS = 3


def verify_all_reduce(rank: int, world_size: int, device: torch.device) -> None:
    """Sum known numbers over the ranks; rank 0 prints the bus bandwidth.

    It is 2 (n − 1) / n × bytes / seconds, as nccl-tests computes it (doc/PERFORMANCE.md).

    Raises:
        ClusterError: the sum is wrong on this rank.
    """
    elements = 2**20 if device.type == "cpu" else 2**24  # 4 or 64 MiB
    buffer = torch.empty(elements, device=device)
    expected = world_size * (world_size + 1) // 2
    backend = torch.distributed.get_backend()
    seconds = []
    for _ in range(REPETITIONS):
        buffer.fill_(rank + 1)
        start = time.perf_counter()
        torch.distributed.all_reduce(buffer)
        low, high = buffer.min().item(), buffer.max().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        if low != expected or high != expected:
            raise ClusterError(
                f"all-reduce over {world_size} ranks gave {low:g} to {high:g} on rank {rank}, "
                f"expected {expected}: {backend} does not work between these hosts",
                "use another backend or image",
            )
    if rank == 0:
        rate = 2 * (world_size - 1) / world_size * buffer.nbytes / min(seconds) / 1e9
        print(
            f"all-reduce over {world_size} ranks verified, "
            f"{rate:.2f} GB/s bus bandwidth ({backend})",
            flush=True,
        )
