"""The entry point of a project's ``train.py``. It imports nothing heavy before the command line is
read, so ``--help`` and a wrong option answer at once, and a signal ends the run at any time.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from smlightning.cluster import ending, signals
from smlightning.options import parse_command_line


def main(train: Callable[[Any], None], cls: type, description: str | None) -> int:
    """Run ``train`` with the options of this command line, and return the process's status.

    Args:
        train: takes an instance of ``cls``.
        cls: the project's class of options.
        description: the beginning of ``--help``.

    Returns:
        0 when ``train`` is done, 2 for a mistake in the command line, 1 for one that is found
        later, and 143 after SIGTERM.
    """
    signals.install()
    # torch reads it when it is imported. It prints C++ frames as warnings on each rank that loses
    # the store of rank 0, next to the sentence about the lost rank.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        options = parse_command_line(cls, sys.argv[1:], description=description)
    except Exception as error:
        return ending.report(error, 2)
    status = ending.run(partial(train, options))
    return status or signals.complete()
