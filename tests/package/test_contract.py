"""The contract that a project's tests take, kept by the files that a project is generated with."""

from collections import Counter

import pytest

from smlightning.testing.contract import *  # noqa: F403
from smlightning.testing.contract import missing_of_what_is_not_drawn


def test_of_a_randomly_augmented_stream_what_is_not_drawn_is_compared() -> None:
    """Samples are a noisy image and its number; then their noise alone."""
    one, again = (Counter(f"{noise}{row} {row}" for row in range(6)) for noise in "ab")
    many = Counter(f"c{row} {row}" for row in (0, 1, 1, 3, 4, 5))
    assert missing_of_what_is_not_drawn(one, again, many) == 1
    noise = [Counter(sample.split()[0] for sample in given) for given in (one, again, many)]
    with pytest.raises(pytest.skip.Exception):
        missing_of_what_is_not_drawn(*noise)


del test_the_rehearsal_passes  # noqa: F821  projects of tests/template are rehearsed
del test_every_option_changes_something  # noqa: F821  test_contract_options.py
del test_the_ranks_agree, test_every_sample_reaches_one_rank  # noqa: F821  test_contract_ranks.py
