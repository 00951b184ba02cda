"""Whether a model's training step fits into a GPU, and what would make it fit, in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from smlightning.launch import instances
from smlightning.launch.estimate.known import Changed
from smlightning.launch.estimate.sizes import (
    USABLE,
    Memory,
    Run,
    Sizes,
    Way,
    gib,
    memory,
    usable,
    ways,
)

SHOWN = 4  # ways, and families of instances, in a sentence


@dataclass(frozen=True)
class Fit:
    """A job on one kind of instance."""

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
