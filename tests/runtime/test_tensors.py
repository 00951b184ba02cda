"""The number of samples in a batch, and the content of each, for batches of any form."""

from collections import OrderedDict, UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from smlightning.tensors import digest, samples, samples_of

IMAGES = torch.arange(12.0).reshape(3, 2, 2)
LABELS = torch.tensor([1, 0, 1])
BOXES = [{"boxes": torch.ones(2, 4), "size": torch.ones(2)} for _ in range(3)]


def graphs() -> Any:
    """Two graphs with three nodes each, as torch_geometric's Batch has them."""
    nodes, of_graph = torch.arange(6.0).reshape(6, 1), torch.tensor([0, 0, 0, 1, 1, 1])
    parts = [SimpleNamespace(x=nodes[of_graph == number]) for number in range(2)]
    return SimpleNamespace(
        _store={"x": nodes, "batch": of_graph, "y": torch.zeros(2)},
        num_graphs=2,
        to_data_list=lambda: parts,
    )


BATCHES = {
    "a tensor": (IMAGES, 3),
    "a tuple": ((IMAGES, LABELS), 3),
    "a list, as a default collate_fn makes it": ([IMAGES, LABELS], 3),
    "a dict": ({"image": IMAGES, "label": LABELS}, 3),
    "another mapping": (UserDict(image=IMAGES, label=LABELS), 3),
    "inputs in a dict, and labels": (({"input_ids": IMAGES}, LABELS), 3),
    "the batches of two loaders": ({"a": (IMAGES, LABELS), "b": (IMAGES[:1], LABELS[:1])}, 3),
    "an object": (SimpleNamespace(image=IMAGES, label=LABELS), 3),
    "weights of classes come first": ([torch.ones(5), IMAGES, LABELS], 3),
    "weights of classes come last": ([IMAGES, torch.ones(5)], 3),
    "a number without dimensions": ([torch.tensor(0.5), IMAGES], 3),
    "boxes of each sample": ({"pixel_values": IMAGES, "labels": BOXES}, 3),
    "graphs": (graphs(), 2),
    "a sparse tensor": ([IMAGES.to_sparse()], 3),
    "no tensor": ({"text": ["one", "two"], "n": 2}, 0),
    "nothing": (None, 0),
}


@pytest.mark.parametrize(("batch", "count"), BATCHES.values(), ids=BATCHES)
def test_the_samples_of_a_batch_are_counted(batch: Any, count: int) -> None:
    assert samples_of(batch) == count


@pytest.mark.parametrize("name", ["a dict", "inputs in a dict, and labels", "boxes of each sample"])
def test_each_sample_has_its_item_of_the_tensors(name: str) -> None:
    found = samples(BATCHES[name][0])
    assert len(found) == 3
    assert all(torch.equal(sample[0], IMAGES[row]) for row, sample in enumerate(found))
    assert len({digest(sample) for sample in found}) == 3


def test_each_graph_is_a_sample() -> None:
    first, second = samples(graphs())
    assert first.x.tolist() == [[0], [1], [2]] and second.x.tolist() == [[3], [4], [5]]


@pytest.mark.parametrize("name", ["a sparse tensor", "no tensor"])
def test_a_batch_without_columns_shows_no_samples(name: str) -> None:
    assert samples(BATCHES[name][0]) == []


def test_a_batch_is_searched_to_a_limit() -> None:
    batch: Any = IMAGES
    for _ in range(12):
        batch = OrderedDict(inner=batch)
    assert samples_of(batch) == 0 and samples(batch) == []
    loop: list[Any] = []
    loop.append(loop)
    assert samples_of(loop) == 0


def test_only_the_highest_tensors_are_visited() -> None:
    """It runs in every step."""

    class Unread:
        def __getattr__(self, name: str) -> Tensor:
            raise AssertionError(name)

    assert samples_of([LABELS, Unread()]) == 3
