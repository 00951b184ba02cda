"""docs/evidence.md, "Claims that circulate": each has a test of what is true."""

import inspect
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from small_job import GOOD

from options import Options
from smlightning.cluster.location import Machine, locate
from smlightning.launch.preflight import source
from smlightning.project import Project

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def keys(tmp_path: Path, code: str) -> list[str]:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "dist.py").write_text(code)
    return [finding.key for finding in source.code(GOOD, Project(tmp_path))]


def test_torch_has_no_mpi_backend_and_preflight_names_the_call(tmp_path):
    assert not dist.is_mpi_available() and dist.is_gloo_available()
    assert keys(tmp_path, "import torch.distributed as d\nd.init_process_group('mpi')\n")


def test_the_old_import_of_smddp_is_named_and_the_new_one_is_not(tmp_path):
    old = "import smdistributed.dataparallel.torch.distributed as dist\n"
    assert keys(tmp_path, old) == ["src/dist.py"]
    (tmp_path / "again").mkdir()
    new = "import smdistributed.dataparallel.torch.torch_smddp\n"
    assert keys(tmp_path / "again", new) == []


def test_there_is_no_all_reduce_params():
    assert not hasattr(dist, "all_reduce_params")
    synchronise = inspect.getsource(torch.nn.parallel.DistributedDataParallel.__init__)
    assert "_sync_module_states" in synchronise  # what DDP does when it wraps


def test_sm_hosts_is_a_list(tmp_path):
    hosts = '["algo-1","algo-2"]'
    with pytest.raises(ValueError):
        int(hosts)
    assert len(json.loads(hosts)) == 2 != len(hosts)
    assert keys(tmp_path, "import os\nn = len(os.environ.get('SM_HOSTS'))\n") == ["src/dist.py"]


def test_the_hugging_face_trainer_wraps_the_model():
    """accelerate does it for the Trainer, where torchrun's variables are."""
    from transformers import Trainer

    assert "accelerator.prepare" in inspect.getsource(Trainer)


def test_torchrun_sets_local_rank_and_no_argument():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "algo-1", "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "1"}
    cluster = locate(env, Machine())
    assert (cluster.rank, cluster.local_rank, cluster.node_rank) == (3, 1, 1)


def test_gradients_are_averaged_so_that_the_batch_grows_and_not_the_rate():
    """Two halves of a batch, averaged as DDP does, are the whole batch's gradient."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8)

    def gradient(rows: slice) -> torch.Tensor:
        weights = torch.zeros(3, requires_grad=True)
        ((x[rows] @ weights - y[rows]) ** 2).mean().backward()
        assert weights.grad is not None
        return weights.grad

    averaged = (gradient(slice(0, 4)) + gradient(slice(4, 8))) / 2
    assert torch.allclose(averaged, gradient(slice(0, 8)), atol=1e-6)
    assert Options().lr_scaling == "none"


def test_gloo_is_the_backend_without_a_gpu_on_any_system():
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert locate(env, Machine()).backend == "gloo"


def test_two_hosts_of_one_gpu_are_distributed():
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env |= {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    cluster = locate(env, Machine(gpus=1, has_nccl=True))
    assert (cluster.num_nodes, cluster.world_size, cluster.backend) == (2, 2, "nccl")


def test_every_claim_of_the_page_has_its_test():
    section = PAGE.read_text(encoding="utf-8").partition("## Claims that circulate")[2]
    section = section.partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line[:2] == "| "]
    claims = len(lines) - 1  # without the title's line
    tests = [name for name in globals() if name.startswith("test_")]
    assert claims == len(tests) - 1 == 9
    assert os.environ.get("SM_HOSTS") is None
