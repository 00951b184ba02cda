"""Several trainings in one process, a few steps at a time in turn: a machine's bad second hits
all of them alike.

On a shared machine the same training takes twice as long from one second to the next. Whole
trainings, side by side or one after the other, then differ by a third; five steps of each, in
another order every time, by what they do.
"""

import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STEPS = 5  # in a turn
STRETCH = 50


class Turns:
    """Each training runs in a thread, and only in its turn.

    Args:
        trainings: by name; each is called with its :class:`Seat` and calls ``seat.step()`` at the beginning of a step.
        seed: of the order; the same on all ranks, whose collectives have to meet.
    """

    def __init__(self, trainings: "dict[str, Callable[[Seat], object]]", seed: int) -> None:
        self.draw = random.Random(seed)
        self.changed = threading.Condition()
        self.waiting = [*trainings]
        self.order: list[str] = []
        self.errors: list[BaseException] = []
        self.seats = {name: Seat(self, name) for name in trainings}
        self.trainings = trainings

    def run(self) -> dict[str, list[float]]:
        """Seconds of every turn of each training, but for the first and the last: setting up, and
        what ends a run.
        """
        threads = [threading.Thread(target=self._train, args=(name,)) for name in self.trainings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return {name: seat.seconds[1:-1] for name, seat in self.seats.items()}

    def _train(self, name: str) -> None:
        self.wait(name)
        self.seats[name].start()
        try:
            self.trainings[name](self.seats[name])
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.seats[name].stop()
            with self.changed:
                self.waiting.remove(name)
                self._next()

    def wait(self, name: str) -> None:
        with self.changed:
            if not self.order:
                self._next()
            self.changed.wait_for(lambda: self.order[0] == name)

    def give(self, name: str) -> None:
        """Hand the turn on, and wait for the next one."""
        with self.changed:
            self._next()
        self.wait(name)

    def _next(self) -> None:
        self.order = self.order[1:] or self.draw.sample(self.waiting, len(self.waiting))
        self.changed.notify_all()


def compare(
    rounds: dict[str, list[list[float]]], base: str
) -> dict[str, tuple[float, float, float]]:
    """Print milliseconds per step of each training, and its ratio to one of them, which it
    returns with its interval.

    Turns are summed over stretches of STRETCH steps, which hold whatever comes once in so many; a
    ratio is that of the sums of all, and its interval holds 95 of 100 ratios of stretches drawn
    anew. What a step costs that has nothing else to do is told best by the median of neighbouring
    turns' ratios, which a machine's bad second does not move.

    Args:
        rounds: by name, for each round the seconds of its turns; equally many in all.
    """

    def stretches(name: str) -> list[float]:
        size = STRETCH // STEPS
        return [
            sum(taken[at : at + size])
            for taken in rounds[name]
            for at in range(0, len(taken), size)
        ]

    sums = {name: stretches(name) for name in rounds}
    turns = sum(map(len, rounds[base]))
    print(f"{turns} turns of {STEPS} steps")
    print(
        f"{'training':12} {'ms/step':>8} {'ratio':>7}   95 % interval   {'median':>7}   95 % interval"
    )
    draw = random.Random(0)
    found = {}
    for name, mine in sums.items():
        pairs = list(zip(mine, sums[base], strict=True))

        def ratio(pairs: list[tuple[float, float]]) -> float:
            return sum(one for one, _ in pairs) / sum(other for _, other in pairs)

        again = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(1000))
        step = 1000 * sum(mine) / turns / STEPS
        both = zip(itertools.chain(*rounds[name]), itertools.chain(*rounds[base]), strict=True)
        single = [one / other for one, other in both]
        medians = sorted(
            statistics.median(draw.choices(single, k=len(single))) for _ in range(1000)
        )
        found[name] = (ratio(pairs), again[25], again[974])
        print(
            f"{name:12} {step:8.2f} {ratio(pairs):7.3f}   {again[25]:.3f} to {again[974]:.3f}  "
            f"{statistics.median(single):7.3f}   {medians[25]:.3f} to {medians[974]:.3f}"
        )
    return found


class Seat:
    """One training's place, and its clock."""

    def __init__(self, turns: Turns, name: str) -> None:
        self.turns, self.name = turns, name
        self.steps = 0
        self.seconds: list[float] = []
        self.since = self.aside = 0.0

    def start(self) -> None:
        self.since, self.aside = time.perf_counter(), 0.0

    def stop(self) -> None:
        self.seconds.append(time.perf_counter() - self.since - self.aside)

    def step(self) -> None:
        """A step begins; fetching its batch belonged to the turn before."""
        self.steps += 1
        if self.steps % STEPS == 1:
            self.stop()
            self.turns.give(self.name)
            self.start()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For what is no training."""
        began = time.perf_counter()
        yield
        self.aside += time.perf_counter() - began


def optimizer_and_schedule(net: Any, total: int) -> tuple[Any, Any]:
    """What a hand-written loop trains the byte CNN with: fused AdamW, warm-up and cosine decay
    over `total` steps.
    """
    import torch

    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, fused=True)
    rising = round(total * 0.06)

    def share(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / (total - rising))))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)
