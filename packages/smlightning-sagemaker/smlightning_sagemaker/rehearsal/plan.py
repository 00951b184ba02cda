"""The plan of a rehearsal: the request, the cluster, the data, and what goes wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smlightning.cluster.location import DEFAULT_PORT
from smlightning_sagemaker.job.images import Profile

FAIL_RANK = "fail-rank"  # the rank raises an error
KILL_RANK = "kill-rank"  # the rank gets SIGKILL
STOP_HOST = "stop-host"  # the host's entry point gets SIGTERM, as SageMaker sends it
LOSE_HOST = "lose-host"  # every process of the host gets SIGKILL
FAULTS = (FAIL_RANK, KILL_RANK, STOP_HOST, LOSE_HOST)


@dataclass(frozen=True)
class Fault:
    """A fault in the middle of training, and its place."""

    kind: str  # one of FAULTS
    target: int  # a rank; for stop-host and lose-host the host's index, from 0

    @property
    def interrupts(self) -> bool:
        """Whether the job starts again afterwards, as after a spot interruption."""
        return self.kind in (STOP_HOST, LOSE_HOST)


@dataclass(frozen=True)
class Plan:
    """One request, played on a number of hosts and processes."""

    hosts: int
    processes: int  # per host, as many as it would have GPUs
    distribution: str  # how SageMaker starts the script; never "auto"
    source: Path  # the folder with train.py
    request: Mapping[str, Any]  # CreateTrainingJob's
    channels: Mapping[str, Path] = field(default_factory=dict)  # folders of this machine
    inherit: Sequence[str] = ()  # variables of this shell that the hosts get too
    secrets: Sequence[str] = ()  # variables of this shell that stand for the job's secrets
    image: Profile | None = None  # versions in the job's image, if known
    notes: Sequence[str] = ()  # printed before training
    fault: Fault | None = None
    batches: int = 0  # limit for one epoch, validation and test; 0: train.py decides
    timeout: float = 1800.0  # seconds
    grace: float = 60.0  # seconds that the other hosts have to end after one has failed
    port: int = DEFAULT_PORT  # where the ranks meet
    real_mpirun: bool = False  # whether mpirun itself starts the ranks

    @property
    def world_size(self) -> int:
        return self.hosts * self.processes

    @property
    def instance_type(self) -> str:
        """The type of all hosts."""
        return str(self.request["ResourceConfig"]["InstanceType"])

    @property
    def region(self) -> str:
        return str(json.loads(self.request["HyperParameters"]["sagemaker_region"]))

    @property
    def entrypoint(self) -> list[str]:
        """The request's entry point; empty: the image's."""
        return list(self.request["AlgorithmSpecification"].get("ContainerEntrypoint") or [])
