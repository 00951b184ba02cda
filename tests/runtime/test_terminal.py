"""Text from elsewhere reaches a terminal without control characters."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from tqdm import tqdm

from smlightning import terminal

# Clears the screen, names the window, writes to the clipboard, resets, overwrites, turns around.
HOSTILE = (
    "a\x1b[2Jb\x1b]0;title\x07c\x1b]52;c;eA==\x1b\\d\x1bce\rf\x08g\x9b31mh\x7f\u202ei\u2066j\x00"
)
RAW = [character for character in HOSTILE if not character.isprintable()]


TERMINAL = {
    "force_terminal": True,
    "color_system": "standard",
    "width": 300,
    "markup": False,
    "_environ": {},
}


def is_clean(text: str) -> bool:
    return bool(text) and not any(character in text for character in RAW)


def test_a_control_character_is_an_escape_and_other_text_stays() -> None:
    assert is_clean(terminal.printable(HOSTILE))
    assert terminal.printable("a\x1b[2J") == r"a\x1b[2J"
    plain = "à\tb\n日本語 😀 علی\u200cرضا <b>\\x1b</b>"
    assert terminal.printable(plain) == plain


def test_line_breaks_become_spaces() -> None:
    assert terminal.one_line("  a \r\n\t \n b\tc  d\n") == r"a b\tc  d"


def test_rich_prints_clean_texts_and_tables_in_colour(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    with terminal.printable_output():
        console = terminal.console(**TERMINAL)
        console.print(HOSTILE, style="bold")
        console.print(table)
    printed = capsys.readouterr().out
    assert "\x1b[1m" in printed and r"\x1b]0;title" in printed
    assert "\x1b]" not in printed and "\x1b[2J" not in printed and "\x07" not in printed


def test_a_progress_bar_overwrites_its_own_line_and_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with terminal.printable_output():
        bar = tqdm(total=2, file=sys.stdout, desc="a\rb", mininterval=0)
        bar.update(1)
        bar.update(1)
        bar.close()
        print("error: no data in", "\rall is well")
        sys.stdout.write("\rb\n")
    bars, error, last, _ = capsys.readouterr().out.split("\n")
    assert bars.count("\r") >= 3 and bars.startswith("\ra\\x0db:   0%")
    assert error == r"error: no data in \x0dall is well" and last == "\rb"


SCRIPT = """
import sys
from smlightning.errors import run_command
run_command(lambda: print(sys.stdin.read()))
"""


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_a_real_terminal_gets_no_escape_sequence(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=HOSTILE.encode(), stdout=theirs, check=True
    )
    os.close(theirs)
    received = os.read(ours, 4096).decode()
    os.close(ours)
    assert done.returncode == 0 and "title" in received
    assert is_clean(received.replace("\r\n", "\n"))


def test_colours_reach_the_terminal_below_a_live_display(monkeypatch):
    """rich replaces sys.stdout there, and would write its escape sequences to a PrintableStream."""
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal.PrintableStream(output))
    console = terminal.console(force_terminal=True, color_system="standard")
    with console.status("running"):
        console.print("[red]host[/red]")
    assert "\x1b[31mhost" in output.getvalue() and r"\x1b" not in output.getvalue()
