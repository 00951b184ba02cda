"""Whether a job fits into its GPUs and its hosts, and what would make it fit, in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from smlightning.launch import aws, instances, resources
from smlightning.launch.estimate import host as hosts
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.host import Host, HostMemory, host_memory
from smlightning.launch.estimate.known import Changed, Known
from smlightning.launch.estimate.sizes import (
    USABLE,
    Memory,
    Run,
    Sizes,
    Way,
    fewest_changes,
    gib,
    memory,
    usable,
    ways,
)
from smlightning.launch.job import Job

SHOWN = 4  # ways, and families of instances, in a sentence


@dataclass(frozen=True)
class Fit:
    """A job on the GPUs of one kind of instance."""

    variants: Mapping[Changed, Sizes]
    run: Run
    gpu_memory: int  # bytes of one GPU
    may_shard: bool = True  # the project has --strategy, and its launcher carries fsdp

    @cached_property
    def memory(self) -> Memory:
        return memory(self.variants[frozenset()], self.run)

    @property
    def fits(self) -> bool:
        return self.memory.total <= usable(self.gpu_memory)

    @property
    def is_certain(self) -> bool:
        """Weights and their state alone, which shapes tell, are more than the GPU has."""
        return self.memory.certain > self.gpu_memory

    @cached_property
    def ways(self) -> list[Way]:
        """With which options it would fit."""
        return ways(self.variants, self.run, self.gpu_memory, self.may_shard)

    @property
    def problem(self) -> str:
        held = self.memory
        state = f"{gib(held.certain)} of them weights, gradients and optimizer state"
        return (
            f"a step of batch_size {self.run.batch_size} needs {gib(held.total)} on each rank, "
            f"{state}, and {gib(usable(self.gpu_memory))} are usable of the {gib(self.gpu_memory)} "
            "of a GPU"
        )

    @property
    def cure(self) -> str:
        """The options that make it fit, else the instances."""
        remedies = [str(way) for way in self.ways[:SHOWN]]
        larger = [
            family
            for family in instances.families_with(int(self.memory.total / USABLE))
            if not family.startswith(("p2", "p3"))
        ]
        if larger:
            remedies.append(f"instances of {' or '.join(larger[:SHOWN])}")
        if not remedies:
            return "take a smaller model: none of the options here makes it fit"
        return f"it fits with {', or '.join(remedies)}"


@dataclass(frozen=True)
class HostFit:
    """A job on the first host of one kind of instance."""

    variants: Mapping[Changed, Sizes]
    run: Run
    host: Host
    instance_type: str
    may_shard: bool = True  # as of `Fit`

    @classmethod
    def of(cls, job: Job, options: Mapping[str, Any], known: Known, run: Run) -> "HostFit":
        """Of a job that trains so."""
        host = estimates.host_of(job, options, run)
        may_shard = estimates.may_shard(job, options)
        return cls(known.variants, run, host, resources.smallest_host(job), may_shard)

    @property
    def main_memory(self) -> int | None:
        """Bytes of the host; None: not known."""
        return instances.host_memory(self.instance_type)

    @property
    def usable(self) -> float:
        """Bytes of the host that the job may fill."""
        return hosts.USABLE * self.main_memory if self.main_memory else math.inf

    @cached_property
    def memory(self) -> HostMemory:
        return host_memory(self.variants[frozenset()], self.run, self.host)

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.usable

    @property
    def is_certain(self) -> bool:
        """What shapes tell is more than the host has."""
        return self.main_memory is not None and self.memory.certain > self.main_memory

    @property
    def problem(self) -> str:
        held = self.memory
        kept = f"{gib(held.snapshot + held.best)} of them copies of checkpoint and best weights"
        return (
            f"a host with {self.host.ranks} {'rank' if self.host.ranks == 1 else 'ranks'} needs "
            f"{gib(held.total)} of main memory, {kept}, and "
            f"{gib(self.usable)} are usable of the {gib(self.main_memory or 0)} of "
            f"{self.instance_type}"
        )

    @cached_property
    def ways(self) -> list[Way]:
        """With which options it would fit."""
        options = [
            ({**dict(changed), **divided, **workers}, sizes, run, host)
            for changed, sizes in self.variants.items()
            for divided, run in self._runs()
            for workers, host in self._hosts()
        ]
        fitting = [
            Way(changes, self.run.batch_size)
            for changes, sizes, run, host in sorted(options, key=lambda option: len(option[0]))
            if host_memory(sizes, run, host).total <= self.usable
        ]
        return list(fewest_changes(fitting))

    def _runs(self) -> list[tuple[dict[str, Any], Run]]:
        """The options of the ways to divide the state, and how the job trains with them."""
        runs: list[tuple[dict[str, Any], Run]] = [({}, self.run)]
        if self.may_shard and self.run.shards < self.run.ranks:
            option = {"strategy": "fsdp"} if self.run.shards == 1 else {"shard_size": 0}
            runs.append((option, replace(self.run, shards=self.run.ranks)))
        return runs

    def _hosts(self) -> list[tuple[dict[str, Any], Host]]:
        choices: list[tuple[dict[str, Any], Host]] = [({}, self.host)]
        if self.host.workers:
            choices.append(({"num_workers": 0}, replace(self.host, workers=0)))
        return choices

    @property
    def cure(self) -> str:
        """The options that make it fit, and the instances."""
        remedies = [str(way) for way in self.ways[:SHOWN]]
        needed = int(self.memory.total / hosts.USABLE)
        kinds = aws.shape("TrainingInstanceType").enum
        larger = instances.larger_hosts(self.instance_type, needed, kinds)
        if larger:
            remedies.append(larger[0])
        if not remedies:
            return "take a smaller model, or another family of instances"
        return f"it fits with {', or '.join(remedies)}"
