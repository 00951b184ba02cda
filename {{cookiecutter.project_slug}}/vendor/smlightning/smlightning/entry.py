"""The entry point of a project's ``train.py``; nothing heavy is imported before the command line is
read, so that ``--help`` and a wrong option answer at once, and a signal ends the run at any time.
"""

from collections.abc import Callable
from functools import partial

from smlightning.cluster import signals
from smlightning.options import Classes, parse_command_line
from smlightning.training import imports


def main(train: Callable[..., None], classes: Classes, description: str | None) -> int:
    """Run ``train`` with the options of this command line, and return the process's status.

    Args:
        train: takes the options of ``classes`` as keywords.
        classes: of options, in the order of ``--help``.
        description: what ``--help`` prints first.

    Returns:
        0 when ``train`` is done, 1 for a mistake that the user can correct, and 143 after SIGTERM.

    Raises:
        SystemExit: the command line has a mistake, which was printed; status 2.
    """
    options = signals.begin(partial(parse_command_line, classes, description=description))
    imports.lightning()
    return signals.run(train, options)
