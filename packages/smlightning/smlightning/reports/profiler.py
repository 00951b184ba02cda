"""A profiler for runs without one."""

from contextlib import AbstractContextManager, nullcontext

from pytorch_lightning.profilers import PassThroughProfiler

_NOTHING = nullcontext()


class NoProfiler(PassThroughProfiler):
    """Measures nothing, in less time than Lightning's PassThroughProfiler.

    That one enters a Python context manager around 70 calls a step.
    """

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING
