"""The state of Lightning's training loop, as a run that is resumed in the middle of an epoch needs it."""

from typing import Any


def set_progress(
    fit_loop: dict[str, Any], *, step: int, epoch: int, batch: int, last: bool, validate: bool, accumulate: int,
    max_steps: int,
) -> None:  # fmt: skip
    """Write a position into the state of Lightning's fit loop (2.6.6) as if a run had just got there.

    What Lightning saves depends on the hook that saves and on accumulation, and after some it repeats or leaves out
    an epoch's end.

    Args:
        step: global batches in all.
        epoch: complete epochs.
        batch: global batches of the next epoch.
        last: whether that is all of them.
        validate: whether validation comes next.
        accumulate: batches of a rank per global batch.
        max_steps: the Trainer's.
    """

    def set_counters(name: str, started: int, complete: int, total_started: int, total_complete: int) -> None:
        for when, first, second in (("current", started, complete), ("total", total_started, total_complete)):
            counters = fit_loop[name][when]
            counters |= {key: first if key in ("ready", "started") else second for key in counters}

    begun = epoch + (batch > 0)
    set_counters("epoch_progress", begun, epoch, begun, epoch)
    done, all_done = batch * accumulate, step * accumulate
    set_counters("epoch_loop.batch_progress", done, done, all_done, all_done)
    fit_loop["epoch_loop.batch_progress"]["is_last_batch"] = last
    set_counters("epoch_loop.val_loop.batch_progress", int(validate), 0, int(validate), 0)
    fit_loop["epoch_loop.val_loop.batch_progress"]["is_last_batch"] = False
    # Lightning counts one more before the next batch: after validation and, with max_steps, at the start of an epoch.
    counted = validate or (batch == 0 and max_steps != -1)
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step - counted
