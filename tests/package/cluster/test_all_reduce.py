"""A backend whose sums are wrong ends the ranks before they train."""

import os
from pathlib import Path

import forked
from smlightning.testing.processes import free_port

AVERAGES = """
import torch, torch.distributed as dist
from smlightning.cluster.all_reduce import verify_all_reduce
from smlightning.cluster.location import ClusterError
all_reduce = dist.all_reduce
def average(tensor):
    all_reduce(tensor)
    tensor /= dist.get_world_size()
dist.all_reduce = average
dist.init_process_group("gloo")
try:
    verify_all_reduce(dist.get_rank(), 2, torch.device("cpu"))
except ClusterError as error:
    print(error.problem)
"""


def test_a_backend_that_averages_is_found(tmp_path: Path) -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in ("0", "1"):
        variables = {**os.environ, **common, "RANK": rank}
        ranks.append(forked.start(AVERAGES, tmp_path / rank, variables))
    statuses, said = forked.wait_for_all(ranks, 60)
    assert statuses == (0, 0), said
    assert all("all-reduce over 2 ranks gave 1.5 to 1.5" in text for text in said), said
