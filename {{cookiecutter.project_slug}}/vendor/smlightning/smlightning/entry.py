"""The entry point of a project's ``train.py``. It imports nothing heavy before the command line is
read, so ``--help`` and a wrong option answer at once, and a signal ends the run at any time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from smlightning.cluster import signals
from smlightning.options import parse_command_line
from smlightning.training import imports


def main(train: Callable[[Any], None], cls: type, description: str | None) -> int:
    """Run ``train`` with the options of this command line, and return the process's status.

    Args:
        train: takes an instance of ``cls``.
        cls: the project's class of options.
        description: the beginning of ``--help``.

    Returns:
        0 when ``train`` is done, 1 for a mistake that the user can correct, and 143 after SIGTERM.

    Raises:
        SystemExit: the command line has a mistake, which was printed; status 2.
    """
    options: Any = signals.begin(partial(parse_command_line, cls, description=description))
    imports.lightning()
    return signals.run(partial(train, options), {})
