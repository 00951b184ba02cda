"""The number of samples in a batch, and the content of each, for batches of any form."""

import dataclasses
from collections import OrderedDict, UserDict, deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BatchEncoding

from smlightning.tensors import digest, leaves, samples, samples_of

IMAGES = torch.arange(12.0).reshape(3, 2, 2)
LABELS = torch.tensor([1, 0, 1])
BOXES = [{"boxes": torch.ones(2, 4), "size": torch.ones(2)} for _ in range(3)]


@dataclasses.dataclass
class Plain:
    image: Any
    label: Any


@dataclasses.dataclass(slots=True)
class Molecules:
    """As BatchMolGraph of chemprop: slots, one of them private, and one that is never set."""

    atoms: Any
    unset: Any = dataclasses.field(init=False)
    __size: int = dataclasses.field(default=3)


class Named(NamedTuple):
    molecules: Any
    extra: Any
    label: Any


class Slots:
    __slots__ = "image"

    def __init__(self, image: Any) -> None:
        self.image = image


class SlotsAndMore(Slots):
    """A class without ``__slots__`` below one with them."""

    def __init__(self, image: Any, label: Any) -> None:
        super().__init__(image)
        self.label = label


def graphs() -> Any:
    """Two graphs with three nodes each, as torch_geometric's Batch has them."""
    nodes, of_graph = torch.arange(6.0).reshape(6, 1), torch.tensor([0, 0, 0, 1, 1, 1])
    parts = [SimpleNamespace(x=nodes[of_graph == number]) for number in range(2)]
    return SimpleNamespace(
        _store={"x": nodes, "batch": of_graph, "y": torch.zeros(2)},
        num_graphs=2,
        to_data_list=lambda: parts,
    )


def detection() -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Two images of three channels; one has four boxes, and one has none."""
    images = [torch.zeros(3, 8, 8), torch.ones(3, 8, 6)]
    targets = [{"boxes": torch.rand(n, 4), "labels": torch.ones(n).long()} for n in (4, 0)]
    return images, targets


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
    "images and their targets, as for torchvision's detectors": (detection(), 2),
    "the same in a dict": (dict(zip(["image", "target"], detection(), strict=True)), 2),
    "views in a list of dicts": ({"views": [{"x": IMAGES}, {"x": IMAGES}]}, 3),
    "pairs of dicts": ({"pair": ({"x": IMAGES}, {"x": IMAGES})}, 3),
    "dicts of several loaders": ({"a": [{"x": IMAGES}] * 2, "b": [{"x": LABELS}] * 2}, 3),
    "views": ([[IMAGES, IMAGES], [LABELS, LABELS]], 3),
    "graphs": (graphs(), 2),
    "a sparse tensor": ([IMAGES.to_sparse()], 3),
    "a dataclass": (Plain(IMAGES, LABELS), 3),
    "slots": (Slots(IMAGES), 3),
    "slots and attributes": (SlotsAndMore(IMAGES, LABELS), 3),
    "a named tuple": (Named(Molecules(torch.ones(7, 2)), None, LABELS), 3),
    "a tokenizer's batch": (BatchEncoding({"input_ids": IMAGES, "attention_mask": IMAGES}), 3),
    "nested lists": ([[[IMAGES, LABELS]]], 3),
    "a deque": (deque([IMAGES]), 3),
    "arrays": ((IMAGES.numpy(), {"label": LABELS.numpy()}), 3),
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


def test_an_image_is_a_sample_with_its_target() -> None:
    images, targets = batch = detection()
    found = samples(batch)
    assert [sample[0] for sample in found] == images
    assert [sample[1] for sample in found] == targets
    assert digest(found[0]) != digest(found[1])


def test_each_graph_is_a_sample() -> None:
    first, second = samples(graphs())
    assert first.x.tolist() == [[0], [1], [2]] and second.x.tolist() == [[3], [4], [5]]


@pytest.mark.parametrize("name", ["a sparse tensor", "no tensor"])
def test_a_batch_without_columns_shows_no_samples(name: str) -> None:
    assert samples(BATCHES[name][0]) == []


def test_a_batch_of_any_depth_has_contents_and_a_cycle_ends() -> None:
    batch: Any = IMAGES
    for _ in range(2000):
        batch = OrderedDict(inner=batch)
    assert samples_of(batch) == len(samples(batch)) == 3
    loop: list[Any] = []
    loop.append(loop)
    assert samples_of(loop) == 0
    parent = SimpleNamespace(image=IMAGES)
    parent.child = SimpleNamespace(parent=parent, label=LABELS)
    assert [len(each) for each in leaves(parent)] == [3, 3]


def changed(image: Tensor) -> list[Any]:
    """Batches of one image, whose forms differ."""
    label = torch.tensor([1])
    return [
        Plain(image, label),
        Slots(image),
        SlotsAndMore(image, label),
        Named(Molecules(image), "text", label),
        BatchEncoding({"input_ids": image}),
        deque([[image]]),
        {"set": {image}},
        image.numpy(),
        np.array([str(image)]),
        torch.nested.nested_tensor([label, image[0]], layout=torch.jagged),
        image.to_sparse(),
        image.to_sparse_csr(),
    ]


def test_batches_of_other_contents_have_other_digests() -> None:
    image = torch.tensor([[1, 0], [0, 2]])
    pairs = zip(changed(image), changed(image), changed(3 * image), strict=True)
    for one, equal, other in pairs:
        assert digest(one) == digest(equal) != digest(other), one


def test_the_order_of_keys_does_not_change_a_digest() -> None:
    """Keys that a library takes from a set have another order in each process."""
    one = {"a": torch.ones(2), "b": [{"c": 1, "d": 2}]}
    other = {"b": [{"d": 2, "c": 1}], "a": torch.ones(2)}
    assert digest(one) == digest(other) != digest({"b": torch.ones(2), "a": [{"c": 1, "d": 2}]})


class RowsOfKeys(UserDict[str, Any]):
    """Iterates over its rows, not its keys, as TensorDict does."""

    def __iter__(self) -> Any:
        return iter([{"a": 1}])

    def keys(self) -> Any:
        return self.data.keys()

    def items(self) -> Any:
        return self.data.items()

    def values(self) -> Any:
        return self.data.values()


def test_a_mapping_that_iterates_over_rows_has_a_digest() -> None:
    one, other = RowsOfKeys(), RowsOfKeys()
    one.data, other.data = {"a": torch.ones(2), "b": 1}, {"b": 1, "a": torch.ones(2)}
    assert digest(one) == digest(other) != digest({"a": torch.ones(2), "b": 2})


def test_only_the_highest_tensors_are_visited() -> None:
    """It runs in every step."""

    class Unread:
        def __getattr__(self, name: str) -> Tensor:
            raise AssertionError(name)

    assert samples_of([LABELS, Unread()]) == 3
