"""Render docs/rehearsal.svg, the README's picture, from a real rehearsal of the default project.

Run in the folder of a generated project, in its environment (make rehearse makes it), on a quiet
machine, since the picture shows seconds:

    python TEMPLATE/docs/rehearsal_picture.py TEMPLATE/docs/rehearsal.svg
"""

import argparse
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from smlightning import project
from smlightning.rehearsal import report
from smlightning.rehearsal.command import parser
from smlightning.rehearsal.planning import make_plan

COMMAND = ["--hosts", "2", "--processes", "2", "--distribution", "torch_distributed"]
WIDTH = 110  # columns
# Of the hosts' lines these are shown; "…" stands for the others.
SHOWN = re.compile(r"torchrun --nnodes|host  +node|127\.0\.0\.\d|all-reduce|global_batch=|step=")
HOSTS_LINE = re.compile(r"host \d+ ")
MACHINE = re.compile(r"(?<=127\.0\.0\.\d )\([\w.-]+\)")  # its name, beside an address
FONT = re.compile(r"@font-face \{.*?\}\s*", re.S)  # from a server; any monospaced one will do


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("svg", type=Path)
    svg = arguments.parse_args().svg
    lines = rehearsed_lines()
    picture = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    picture.print(Text("$ python -m smlightning rehearse " + " ".join(COMMAND), "bold"))
    for line in shown(lines):
        picture.print(line, soft_wrap=False, overflow="ellipsis", no_wrap=True)
    svg.write_text(FONT.sub("", picture.export_svg(title="make rehearse")), encoding="utf-8")


def rehearsed_lines() -> list[Text]:
    """What a rehearsal prints on a terminal, with its colours."""
    output = io.StringIO()
    console = Console(
        file=output, width=WIDTH, force_terminal=True, highlight=False, soft_wrap=True
    )
    plan = make_plan(parser().parse_args(COMMAND), project.find())
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        result = report.rehearse(plan, Path(folder), console)
    assert result["ok"], "a picture of a rehearsal that failed"
    return [Text.from_ansi(line) for line in output.getvalue().splitlines()]


def shown(lines: list[Text]) -> list[Text]:
    """The lines of the picture: no status line, and of the hosts' output the telling ones."""
    kept: list[Text] = []
    for line in lines:
        text = line.plain.strip()
        if not text or "hosts ended" in text:
            continue
        if HOSTS_LINE.match(text) and not SHOWN.search(text):
            if kept[-1].plain != "…":
                kept.append(Text("…", "dim"))
            continue
        kept.append(without_machine(line))
    return kept


def without_machine(line: Text) -> Text:
    """The line without this machine's name, at the same width."""
    for match in MACHINE.finditer(line.plain):
        begin, end = match.span()
        line = Text.assemble(line[:begin], " " * (end - begin), line[end:])
    return line


if __name__ == "__main__":
    main()
