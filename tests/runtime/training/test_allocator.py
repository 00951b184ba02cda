"""Each torch gets the settings that it knows, and the user's own settings win."""

import pytest

from smlightning.training.allocator import allocator_settings


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("2.5.1+cu124", {}),
        ("2.10.0+cu130", {"expandable_segments"}),
        ("2.12.1", {"expandable_segments"}),
        ("2.13.0+cpu", {"expandable_segments", "pinned_max_cached_size_mb"}),
        ("3.0.0a0", {"expandable_segments", "pinned_max_cached_size_mb"}),
        ("nightly", {}),
    ],
)
def test_each_version_gets_the_options_that_it_knows(version: str, options: set[str]) -> None:
    text = allocator_settings(version, {}).get("PYTORCH_ALLOC_CONF", "")
    assert {option.partition(":")[0] for option in text.split(",") if option} == set(options)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("value", ["", "backend:cudaMallocAsync"])
def test_the_users_own_value_wins(name: str, value: str) -> None:
    assert allocator_settings("2.13.0", {name: value}) == {}
