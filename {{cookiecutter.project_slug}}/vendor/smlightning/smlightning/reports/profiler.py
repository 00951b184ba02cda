"""Lightning's profiler for runs that are not profiled."""

from contextlib import AbstractContextManager, nullcontext

from pytorch_lightning.profilers import PassThroughProfiler

_NOTHING = nullcontext()


class NoProfiler(PassThroughProfiler):
    """Measures nothing, in less time than Lightning's own.

    That one enters a context manager of Python around 70 calls a step.
    """

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING
