"""Several trainings in one process, a few steps at a time in turn: a machine's bad second hits all of them alike.

Whole trainings side by side differ by a third on a shared machine, one after the other too; ten steps of each, in
another order every time, differ by what they do.
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

STEPS = 10  # in a turn


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
        """Seconds of every turn of each training; the first, which sets up, is left out."""
        threads = [threading.Thread(target=self._train, args=(name,)) for name in self.trainings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return {name: seat.seconds[1:] for name, seat in self.seats.items()}

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


def compare(rounds: dict[str, list[list[float]]], base: str) -> None:
    """Print milliseconds per step of each training, and its ratio to one of them.

    Turn by turn the fastest round counts, since other users of a machine only ever add time; the spread of a ratio is
    what it becomes when one round is left out.

    Args:
        rounds: by name, for each round the seconds of its turns; equally many in all.
    """

    def total(name: str, without: int | None = None) -> float:
        kept = [taken for number, taken in enumerate(rounds[name]) if number != without]
        return sum(min(turn) for turn in zip(*kept, strict=True))

    turns = len(rounds[base][0])
    print(f"{turns} turns of {STEPS} steps; {'training':12} {'ms/step':>8} {'ratio':>7} {'lowest':>7} {'highest':>8}")
    for name in rounds:
        ratios = [total(name, without) / total(base, without) for without in range(len(rounds[name]))]
        print(
            f"{name:>33} {1000 * total(name) / turns / STEPS:8.2f} {total(name) / total(base):7.3f} "
            f"{min(ratios):7.3f} {max(ratios):8.3f}"
        )


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
    def uncounted(self):  # noqa: ANN201
        """For what is no training."""
        began = time.perf_counter()
        yield
        self.aside += time.perf_counter() - began
