"""A position in training, after each event and in a resumed run."""

from dataclasses import FrozenInstanceError, replace

import pytest

from smlightning.checkpoints.position import Position

START = Position(batches_per_epoch=4, total_steps=8, accumulate=3)


def batch(position: Position, rank_batches: int, **given: bool) -> Position:
    flags = {"last": False, "validation_next": False, **given}
    return position.after_batch(
        epoch=position.epoch,
        rank_batches=rank_batches,
        all_rank_batches=10 * position.epoch + rank_batches,
        **flags,
    )


def test_a_position_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        START.step = 3  # type: ignore[misc]


def test_batches_count_up_to_the_next_epoch() -> None:
    second = batch(batch(START, 3), 6)
    assert (second.step, second.batch, second.rank_batches) == (2, 2, 6)
    assert second.next_start() == (0, 2)
    last = batch(batch(second, 9), 10, last=True, validation_next=True)  # accumulation ends early
    assert (last.step, last.batch, last.epoch_trained) == (4, 4, True)
    assert last.next_start() == (0, 4), "validation still belongs to this epoch"
    assert not last.at_epoch_end
    validated = replace(last, validation_next=False)
    assert validated.next_start() == (1, 0) and validated.at_epoch_end
    ended = validated.after_epoch()
    assert (ended.epoch, ended.batch, ended.rank_batches, ended.epoch_trained) == (1, 0, 0, False)
    assert ended.all_rank_batches == 10 and ended.next_start() == (1, 0)


def test_training_that_ends_within_an_epoch_stays_there() -> None:
    ended = replace(batch(batch(START, 3), 6), total_steps=2)
    assert ended.at_epoch_end
    assert ended.after_epoch() == ended


@pytest.mark.parametrize(
    ("accumulate", "counts"), [(3, (6, 16)), (1, (2, 6)), (2, (4, 12))], ids=["same", "1", "2"]
)
def test_rank_counts_follow_the_accumulation(accumulate: int, counts: tuple[int, int]) -> None:
    """With the same one, Lightning's own counts: an epoch's last global batch may be of fewer."""
    position = START
    for rank_batches in (3, 6, 9):
        position = batch(position, rank_batches)
    position = batch(position, 10, last=True).after_epoch()
    position = batch(batch(position, 3), 6)
    assert position.step == 6
    assert position.rank_counts(accumulate) == counts


def test_no_batch_is_skipped_at_an_epochs_start() -> None:
    trained = replace(
        START, step=4, batch=4, rank_batches=10, all_rank_batches=10, epoch_trained=True
    )
    assert trained.rank_counts(3) == (0, 10)
