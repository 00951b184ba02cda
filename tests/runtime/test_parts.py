"""The search finds what any object holds, at any depth."""

import random
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Subset

from smlightning.data import rng
from smlightning.parts import generators, is_plain, walk


class Holder:
    def __init__(self, part: Any) -> None:
        self.part = part


class Slots:
    __slots__ = ("__hidden", "empty")

    def __init__(self, part: Any) -> None:
        self.__hidden = part


def closure(part: Any) -> Any:
    return lambda x: part.normal() + x


def default(part: Any) -> Any:
    def call(x: float, numbers: Any = part) -> Any:
        return numbers.normal() + x

    return call


def deep(part: Any) -> Any:
    for _ in range(50):
        part = Holder([part])
    return part


class Layer(torch.nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.register_forward_hook(closure(part))


HOLDERS = {
    "a closure": closure,
    "a default": default,
    "a partial": lambda part: partial(max, key=part),
    "a method": lambda part: part.normal,
    "slots": Slots,
    "200 items": lambda part: {**dict.fromkeys(range(200)), 200: part},
    "2000 objects": lambda part: [*(Holder(n) for n in range(2000)), Holder(part)],
    "a deque": lambda part: deque([part]),
    "a set": lambda part: {part},
    "fifty objects": deep,
    "a hook of a module": lambda part: torch.nn.Sequential(Layer(part)),
    "a subset": lambda part: Subset(Holder(part), []),  # type: ignore[arg-type]
    "an array of objects": lambda part: np.array([None, part]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_generators_are_found_wherever_they_are(holder: str) -> None:
    numbers = np.random.default_rng()
    held = HOLDERS[holder](numbers)
    assert rng.own_generators(Holder([held])) == [numbers]


def test_each_kind_of_generator_is_found_once() -> None:
    kinds = [torch.Generator(), np.random.default_rng(), np.random.RandomState(), random.Random()]
    circle = Holder(kinds)
    circle.again = [circle, *kinds]  # type: ignore[attr-defined]
    assert generators(circle) == kinds
    assert not generators([np.random.normal, random.random, torch.default_generator])


def test_generators_of_the_rows_are_not_the_samplers() -> None:
    rows = Subset(Holder(random.Random()), [])  # type: ignore[arg-type]
    own = torch.Generator()
    sampler = RandomSampler(rows, replacement=True, num_samples=1, generator=own)
    assert rng.own_generators(sampler) == [own]


@dataclass
class Record:
    path: str
    label: int


@pytest.mark.parametrize("make", [lambda n: (str(n), n), lambda n: Record(str(n), n)])
def test_many_rows_are_searched_in_a_moment(make: Any) -> None:
    """200,000 rows; one by one they would take some 20 times as long."""
    rows = [make(n) for n in range(200_000)]
    start = time.thread_time()
    assert not generators(Holder(rows))
    assert time.thread_time() - start < 1


def test_objects_and_circles_are_not_plain() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert is_plain({"a": [1, (2.0, None)], (1, 2): b""})
    for value in (circle, [torch.ones(1)], {"a": {1}}, [Holder(1)], np.float64(1)):
        assert not is_plain(value)


def test_an_object_keeps_its_path_when_references_change() -> None:
    first, second = Holder(1), Holder(2)
    root = Holder([first, second])
    root.now = first  # type: ignore[attr-defined]
    nodes: Any = {}

    def paths() -> dict[Any, Any]:
        found = walk([(("root",), root)], lambda value: is_plain(value) or None, nodes)
        return {path: own for path, own, _, _ in found}

    before = paths()
    root.now = second  # type: ignore[attr-defined]
    after = paths()
    now, item = ("root", "now"), ("root", "part", (1,))
    assert (before[now], before[item]) == (now, item)
    assert (after[now], after[item]) == (item, item)
    assert before.keys() == after.keys()
