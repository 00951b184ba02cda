"""The stub of SMDDP rejects what AWS's documentation does not allow."""

import os
import subprocess
import sys
from pathlib import Path

import forked
from smlightning_sagemaker import rehearsal

CONTRACT = """
import sys, torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
store = dist.HashStore()
def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "SMDDP does not support" in str(error), error
    else:
        sys.exit(f"{call} was let through")
one = dict(store=store, rank=0, world_size=1)
refused(lambda: dist.init_process_group("smddp", device_id=torch.device("cuda:0"), **one))
refused(lambda: dist.init_process_group("cpu:gloo,cuda:smddp", **one))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
refused(lambda: dist.new_group(backend="smddp"))
dist.destroy_process_group()
dist.init_process_group("smddp", store=store, rank=0, world_size=1)
x = torch.ones(2)
for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
    refused(lambda: dist.all_reduce(x, op=op))
refused(lambda: dist.new_group())
refused(lambda: dist.new_group(backend="gloo"))
refused(lambda: dist.barrier(device_ids=[0]))
refused(lambda: dist.all_gather_into_tensor(torch.empty(2), x))
refused(lambda: dist.reduce_scatter_tensor(torch.empty(2), x))
refused(lambda: dist.reduce(x, 0))
dist.all_reduce(x); dist.barrier(); dist.broadcast(x, 0); dist.all_gather([torch.empty(2)], x)
assert x.tolist() == [1, 1] and dist.get_backend() == "smddp"
dist.broadcast_object_list([None], 0)
dist.destroy_process_group()
"""


def test_the_stub_keeps_to_the_contract(tmp_path: Path) -> None:
    stubs = Path(rehearsal.__file__).parent / "stubs"
    (tmp_path / "smdistributed").symlink_to(stubs / "smdistributed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", CONTRACT], env=environment, check=True)


PREPARES = """
import time
from pathlib import Path
from types import SimpleNamespace
from pytorch_lightning import LightningDataModule, LightningModule
import dist
from smlightning.cluster import smddp
class Data(LightningDataModule):
    def prepare_data(self):
        time.sleep(2)
        Path({path!r}).touch()
with dist.session() as cluster:
    module = LightningModule()
    module._trainer = SimpleNamespace(datamodule=Data())
    ranks = SimpleNamespace(lightning_module=module, local_rank=cluster.rank, node_rank=0)
    smddp.prepare_data_now(ranks)
    assert Path({path!r}).exists()
"""


def test_all_ranks_wait_for_prepared_data_without_a_process_group(tmp_path: Path) -> None:
    """The rendezvous of the group would end after half an hour."""
    code = PREPARES.format(path=str(tmp_path / "prepared"))
    statuses, said = forked.wait_for_all(forked.start_ranks(code, tmp_path / "run", 2), 100)
    assert statuses == (0, 0), said


def test_the_stub_is_not_found_outside_a_rehearsal() -> None:
    found = subprocess.run([sys.executable, "-c", "import smdistributed"], capture_output=True)
    assert found.returncode == 1
