"""The facts that each rank of an attempt noted about itself (stubs/rehearsal_process.py)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smlightning_sagemaker.rehearsal.hosts import Host

# Thousands of digests, which only the check data-divided reads.
NOT_REPORTED = ("batches", "samples", "inputs")
# How the recorder marks prepare_data_per_node=False: only rank 0 calls it.
FOR_ALL_NODES = "for all nodes"


@dataclass(frozen=True)
class Rank:
    """One process of the job, as it saw itself and its data."""

    rank: int
    host: int  # index of the host that it ran on
    local_rank: int
    node_rank: int
    world_size: int
    current_host: str = ""  # SM_CURRENT_HOST
    package: str = ""  # the file of smlightning that it imported; empty: none
    prepare_data: Sequence[str] = ()  # calls: class, and which of Trainer's runs
    metrics: Mapping[str, float] = field(default_factory=dict)  # of validation and test
    files: Sequence[str] = ()  # written: relative to /opt/ml, or absolute
    main_address: str = ""  # at which it connected to rank 0; empty: to no other rank
    steps: int = 0  # of optimizers
    printed: int = 0  # calls of print() since its first step
    weights: str | None = None  # digests; None: it ended before there were any
    first_step: int | None = None  # where the first fit() began
    fault_at: float | None = None  # when it carried out its fault, in seconds of time.time()
    batches: Sequence[tuple[str, int]] = ()  # digest and number of samples, 0 if unknown
    samples: Sequence[str] = ()  # digests
    inputs: Sequence[tuple[str, int]] = ()  # as batches: what DistributedDataParallel got
    lightning: bool = False  # whether a Trainer of Lightning ran it; else torch shows its facts
    sharded: bool = False  # by FSDP: each rank has other weights
    on_cpu: Sequence[str] = ()  # calls that asked for a GPU

    def report(self) -> dict[str, Any]:
        """The rank's facts in the JSON report."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and name not in NOT_REPORTED
        }


@dataclass(frozen=True)
class Attempt:
    """One run of the job, as it ended."""

    folder: Path
    hosts: Sequence[Host]
    ranks: Sequence[Rank] = ()
    violations: Sequence[str] = ()  # calls that SMDDP does not support

    @property
    def succeeded(self) -> bool:
        return not any(host.exit_code for host in self.hosts)


def read_ranks(folder: Path) -> list[Rank]:
    """The ranks of an attempt's folder, in order, without processes that did not train."""
    contents = [json.loads(path.read_text()) for path in folder.glob("evidence/rank-*.json")]
    ranks = [Rank(**content) for content in contents if "rank" in content]
    return sorted(ranks, key=lambda rank: (rank.rank, rank.host))


def read_violations(folder: Path) -> list[str]:
    """The errors of SMDDP's stub, each once."""
    return sorted({path.read_text() for path in folder.glob("evidence/smddp-*")})
