"""Scripts that ask for a GPU run on the CPU, and everything else in them works as before."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp
import torch.utils._device
from small_rehearsal import small_plan

from smlightning_sagemaker.rehearsal.hosts import copy_stubs

BEGINNING = """
import torch  # whose import loads the stubs, as in a rehearsal
import rehearsal_cpu
rehearsal_cpu.CHOOSERS["colorsys"] = "_Absent"
rehearsal_cpu.use_cpu()
import colorsys
"""
FACTORIES = """
import functools, pickle, torch

@torch.jit.script
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(2.0) + torch.zeros(1)

assert doubled(torch.ones(1)).item() == 2
zeros = pickle.loads(pickle.dumps(functools.partial(torch.zeros, 3)))
assert zeros().shape == (3,)
assert not rehearsal_cpu.noted
assert torch.zeros(3, device=0).device.type == torch.ones(3).to(device=0).device.type == "cpu"
assert rehearsal_cpu.noted == ['zeros("cuda")', 'to("cuda")']
"""
GROUPS = """
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)
DistributedDataParallel(torch.nn.Linear(1, 1))
assert not rehearsal_cpu.noted
DistributedDataParallel(torch.nn.Linear(1, 1), [0])
assert rehearsal_cpu.noted == ["device_ids"]
torch.distributed.distributed_c10d.new_group([0], backend="nccl")
assert rehearsal_cpu.noted == ["device_ids", 'backend="nccl"']
torch.distributed.barrier(device_ids=[0])
torch.distributed.destroy_process_group()
"""
SHARDS = """
import torch
from torch.distributed.device_mesh import init_device_mesh
torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, fully_shard
x = torch.ones(1, 2).pin_memory()
options = {"sync_module_states": True, "cpu_offload": CPUOffload(offload_params=True)}
FullyShardedDataParallel(torch.nn.Linear(2, 1), device_id=0, **options)(x).sum().backward()
mesh = init_device_mesh("cuda", (1,))
assert mesh.device_type == "cpu"
fully_shard(torch.nn.Linear(2, 1), mesh=mesh)(x).sum().backward()
asked = ["pin_memory()", "FullyShardedDataParallel", 'DeviceMesh("cuda")']
assert rehearsal_cpu.noted == asked, rehearsal_cpu.noted
torch.distributed.destroy_process_group()
"""
SMDDP = """
import sys
from smlightning_sagemaker import rehearsal
sys.path.append(f"{rehearsal.__path__[0]}/stubs")
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp
dist.init_process_group("smddp", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
try:
    dist.barrier(device_ids=[0])
except RuntimeError as error:
    assert "SMDDP does not support: barrier" in str(error)
else:
    sys.exit("SMDDP accepted device_ids")
"""
LIGHTNING = """
import pytorch_lightning as pl
for devices in ("0,1", [0, 1], "2", 2):
    trainer = pl.Trainer(accelerator="gpu", devices=devices, logger=False)
    assert trainer.num_devices == 2, devices
assert pl.Trainer(accelerator="gpu", devices="1,", logger=False).num_devices == 1
sharded = pl.strategies.FSDPStrategy(cpu_offload=True)
for strategy in ("fsdp", sharded):
    trainer = pl.Trainer(accelerator="gpu", devices=2, strategy=strategy, logger=False)
    assert isinstance(trainer.strategy, pl.strategies.FSDPStrategy)
    assert isinstance(trainer.accelerator, pl.accelerators.CPUAccelerator)
"""


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stubs' folder, on the path of Python."""
    copy_stubs(small_plan(1, 1), tmp_path / "stubs")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stubs"))
    monkeypatch.setenv("REHEARSAL_PROCESSES", "2")
    return tmp_path / "stubs"


@pytest.mark.parametrize(
    "text",
    [FACTORIES, GROUPS, SHARDS, SMDDP, LIGHTNING],
    ids=["factories", "groups", "shards", "smddp", "lightning"],
)
def test_a_script_runs_on_the_cpu(text: str, stubs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGINNING + text)  # TorchScript reads the source
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_private_parts_that_the_stubs_use_exist(
    stubs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one is missing after an upgrade, read that part of the library again."""
    owners = {
        "_device_constructors": torch.utils._device,
        "_find_builtin": torch.jit._builtins,
        "_register_builtin": torch.jit._builtins,
        "_BatchNorm": torch.nn.modules.batchnorm,
        "_check_input_dim": torch.nn.SyncBatchNorm,
        "_passing_sync_batchnorm_handle": torch.nn.parallel.DistributedDataParallel,
        "_get_default_store": torch.distributed.distributed_c10d,
        "_BaseDataLoaderIter": torch.utils.data.dataloader,
        "_check_module_states_for_sync_module_states": torch.distributed.fsdp._init_utils,
        "to_cpu": torch.distributed.fsdp._flat_param.FlatParamHandle,
    }
    assert not [name for name, owner in owners.items() if not hasattr(owner, name)]
    monkeypatch.syspath_prepend(stubs)
    choosers = import_module("rehearsal_cpu").CHOOSERS
    installed = [name for name in choosers if find_spec(name.partition(".")[0])]
    assert "pytorch_lightning.trainer.connectors.accelerator_connector" in installed
    assert not [name for name in installed if not hasattr(import_module(name), choosers[name])]
    lightning = [name for name in installed if "connector" in name]
    kinds = [getattr(import_module(name), choosers[name]) for name in lightning]
    assert all(hasattr(kind, "_check_strategy_and_fallback") for kind in kinds)
