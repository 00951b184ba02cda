"""Where Lightning's training loop stands, in its own words: what it needs to go on in the middle of an epoch."""

from typing import Any


def set_progress(
    fit_loop: dict[str, Any], step: int, epoch: int, batch: int, batches: int, total: int, accumulate: int
) -> None:
    """Write a place into the state of Lightning's fit loop (2.6.6) as if a run had just got there.

    What Lightning saves depends on the hook that saves and on accumulation, and after some it repeats or leaves out
    an epoch's end. These are its own words for: `epoch` epochs are complete and `batch` global batches of the next;
    where that is all of them, validation has to begin.
    """

    def set_counters(name: str, started: int, complete: int, total_started: int, total_complete: int) -> None:
        for when, first, last in (("current", started, complete), ("total", total_started, total_complete)):
            counters = fit_loop[name][when]
            counters |= {key: first if key in ("ready", "started") else last for key in counters}

    begun = epoch + (batch > 0)
    set_counters("epoch_progress", begun, epoch, begun, epoch)
    done, all_done = batch * accumulate, (epoch * batches + batch) * accumulate
    set_counters("epoch_loop.batch_progress", done, done, all_done, all_done)
    validating = int(0 < batch == batches)
    fit_loop["epoch_loop.batch_progress"]["is_last_batch"] = bool(validating)
    set_counters("epoch_loop.val_loop.batch_progress", validating, 0, validating, 0)
    fit_loop["epoch_loop.val_loop.batch_progress"]["is_last_batch"] = False
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step - validating  # counted after validation
