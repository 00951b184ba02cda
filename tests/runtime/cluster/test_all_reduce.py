"""A backend whose sums are wrong ends the ranks before they train."""

import os
from pathlib import Path

import forked

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
    said = forked.run_on_ranks(AVERAGES, tmp_path, os.environ, 2)
    assert all("all-reduce over 2 ranks gave 1.5 to 1.5" in text for text in said), said
