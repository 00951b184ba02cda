"""Make text from other sources (labels, file names, logs, answers of AWS) safe for a terminal.

A control character could move the cursor, hide text, or write to the clipboard.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

CONTROLS = (*range(9), *range(11, 32), *range(127, 160))  # C0 without tab and line feed; C1
REVERSALS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they change the text's direction
ESCAPES = {
    **{code: f"\\x{code:02x}" for code in CONTROLS},
    **{code: f"\\u{code:04x}" for code in REVERSALS},
}


def printable(text: str) -> str:
    """The text with each control character as an escape: ``\\x1b`` as four characters."""
    return text.translate(ESCAPES)


def one_line(text: str) -> str:
    """The printable text on one line, without spaces around its former line breaks."""
    lines = (line.strip(" \t") for line in re.split(r"[\r\n]+", text))
    return printable(" ".join(filter(None, lines))).replace("\t", r"\t")


class PrintableStream:
    """A text stream that writes control characters as escapes.

    A progress bar may return to the beginning of its own line or an empty one. rich needs escape
    sequences for colours: it writes to the original stream (``rich_proxied_file``), with texts that
    `console` has made safe.
    """

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream
        self._is_bar = True  # whether the current line holds nothing or a progress bar

    def write(self, text: str) -> int:
        start = "\r" if self._is_bar and text.startswith("\r") else ""
        if text:
            self._is_bar = text.endswith("\n") or (bool(start) and "\n" not in text)
        return int(self.rich_proxied_file.write(start + printable(text.removeprefix(start))))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """The body's output has no control characters."""
    out: Any = PrintableStream(sys.stdout)
    err: Any = PrintableStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def console(**options: Any) -> Any:
    """A console of rich whose texts have no control characters; ``options`` are rich's."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    return PrintableConsole(**{"file": unescaped_output(), **options})


def unescaped_output() -> Any:
    """The stream of a `PrintableStream`; rich finds it itself, except in a live display."""
    return getattr(sys.stdout, "rich_proxied_file", sys.stdout)
