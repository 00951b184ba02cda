"""Draw the README's pictures from real runs of generated projects: `make pictures`.

docs/rehearsal.svg: a rehearsal, whose lines appear one after the other.
docs/curves.png: the curves of a training.

With --check nothing is written. A rehearsal and a short training show whether the pictures still
have the lines and metrics that the code prints; the exit status is 1 if not.
"""

import argparse
import csv
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

from cookiecutter.main import cookiecutter
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.text import Text

DOCS = Path(__file__).resolve().parent
REHEARSE = ["-m", "smlightning_sagemaker", "rehearse", "--hosts", "2", "--processes", "2"]
REHEARSE += ["--distribution", "torch_distributed"]
CURVES = DOCS / "curves.png"
SHORT = ["--max_steps", "2", "--val_check_steps", "1", "--log_every", "1"]
METRICS = "metrics"  # of a png: where its columns are kept

COLUMNS = 110
# The picture shows these lines of the hosts; "…" stands for the others.
SHOWN = re.compile(r"torchrun --nnodes|host  +node|127\.0\.0\.\d|all-reduce|global_batch=|step=")
HOSTS_LINE = re.compile(r"host \d+ ")
HOST_NAME = re.compile(r"(?<=127\.0\.0\.\d )\([\w.-]+\)")
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-HJKSTfhlsu]")  # cursor movements, not colours

# Seconds of the picture: a pause is at most LONGEST long, and the last line stays for REST.
LONGEST, REST = 1.2, 10.0
WIDTH, HEIGHT, MARGIN = 8.4, 19, 16  # of a character, of a line, around the text
STYLES = {  # by rich's names
    "bold": 'font-weight="bold"', "dim": 'opacity="0.6"', "color(1)": 'fill="#ff7b72"',
    "color(2)": 'fill="#7ee787"', "color(3)": 'fill="#f2cc60"', "color(4)": 'fill="#79c0ff"',
    "color(5)": 'fill="#d2a8ff"', "color(6)": 'fill="#76e3ea"',
}  # fmt: skip

Line = tuple[float, Text]  # the second in which it appears


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        project = generate(Path(folder))
        lines = shown(rehearse(project))
        metrics = train(project, check)
        if check:
            return report([*stale_lines(lines), *stale_curves(metrics)])
        (DOCS / "rehearsal.svg").write_text(svg(lines), encoding="utf-8")
        keep_curves(project / "outputs" / "curves.png", metrics)
    return 0


def generate(folder: Path) -> Path:
    """A project with default answers."""
    return Path(cookiecutter(str(DOCS.parent), no_input=True, output_dir=str(folder)))


def environment(project: Path) -> dict[str, str]:
    package = os.pathsep.join(map(str, DOCS.parent.glob("packages/smlightning*")))
    size = {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    return {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **size}


def rehearse(project: Path) -> list[Line]:
    """All lines that a rehearsal prints on a terminal, with the second of each."""
    terminal, end = pty.openpty()
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *REHEARSE], cwd=project, env=environment(project), stdout=end, stderr=end
    )
    os.close(end)
    lines: list[Line] = []
    with os.fdopen(terminal, encoding="utf-8", errors="replace", newline="\n") as output:
        try:
            for line in output:
                printed = CONTROL.sub("", line).rstrip("\r\n").rpartition("\r")[2]
                lines.append((time.monotonic() - start, Text.from_ansi(printed)))
        except OSError:  # how Linux says that the other end is closed
            pass
    if process.wait():
        sys.exit("the rehearsal failed:\n" + "\n".join(text.plain for _, text in lines))
    return lines


def shown(lines: list[Line]) -> list[Line]:
    """The lines of the picture: no status line, and the important ones of the hosts' output."""
    command = " ".join(["smlightning", *REHEARSE[2:]])
    kept: list[Line] = [(0.0, Text(f"$ {command}", "bold"))]
    for second, line in lines:
        text = line.plain.strip()
        if not text or "hosts ended" in text:
            continue
        if HOSTS_LINE.match(text) and not SHOWN.search(text):
            if kept[-1][1].plain != "…":
                kept.append((second, Text("…", "dim")))
            continue
        kept.append((second, without_host_name(line)))
    return kept


def without_host_name(line: Text) -> Text:
    """The line without this machine's name, at the same width."""
    for match in HOST_NAME.finditer(line.plain):
        begin, end = match.span()
        line = Text.assemble(line[:begin], " " * (end - begin), line[end:])
    return line


def svg(lines: list[Line]) -> str:
    """A terminal in which the lines appear. Without animation, all of them are there."""
    appears, last, now = [], 0.0, 0.0
    for second, _ in lines:
        now += min(second - last, LONGEST)
        last = second
        appears.append(now)
    duration = now + REST
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = len(lines) * HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        "<title>make rehearse, pauses shortened</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#161b22"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
        'font-size="14" fill="#e6edf3">',
    ]
    for number, ((_, line), second) in enumerate(zip(lines, appears, strict=True), 1):
        line.truncate(COLUMNS, overflow="ellipsis")
        y = MARGIN + number * HEIGHT - 5
        length = line.cell_len * WIDTH
        animation = (
            '<animate attributeName="opacity" values="0;1;1" calcMode="discrete" '
            f'keyTimes="0;{second / duration:.4f};1" dur="{duration:.1f}s" '
            'repeatCount="indefinite"/>'
        )
        out.append(
            f'<g>{animation if second else ""}<text x="{MARGIN}" y="{y}" '
            f'textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs">{spans(line)}</text></g>'
        )
    return "\n".join([*out, "</g>", "</svg>", ""])


def spans(line: Text) -> str:
    """The line's parts in their colours."""
    parts = []
    for part in line.divide(sorted({at for span in line.spans for at in span[:2]})):
        words = {word for span in part.spans for word in str(span.style).split()}
        words |= {*str(line.style).split()}
        attributes = " ".join(STYLES[word] for word in STYLES if word in words)
        # Browsers merge spaces; SVG 2 dropped xml:space="preserve".
        text = escape(part.plain, quote=False).replace(" ", "\N{NO-BREAK SPACE}")
        parts.append(f"<tspan {attributes}>{text}</tspan>" if attributes else text)
    return "".join(parts)


def train(project: Path, short: bool) -> list[str]:
    """Train the project; the columns of its curves."""
    command = [sys.executable, "src/train.py", *(SHORT if short else [])]
    run = subprocess.run(
        command, cwd=project, env=environment(project), capture_output=True, text=True, check=False
    )
    if run.returncode:
        sys.exit(f"the training failed:\n{run.stdout}{run.stderr}")
    with (project / "outputs" / "curves.csv").open(encoding="utf-8") as file:
        return sorted(next(csv.reader(file)))


def keep_curves(drawn: Path, columns: list[str]) -> None:
    """Copy a picture to CURVES, with its columns in it."""
    notes = PngInfo()
    notes.add_text(METRICS, " ".join(columns))
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(64).save(CURVES, pnginfo=notes, optimize=True)


def form(line: str) -> str:
    """A line without what differs from run to run: numbers, details of checks, what was cut off."""
    row = re.match(r"│ (\S*) +│ (\w*) +│", line)
    if row:  # of the table of checks
        return f"{row[1]} {row[2]}".strip()
    line = re.sub(r"\S*…$|\+\w+", "", line)
    line = re.sub(r"[KMGT](?=i?B)", "", line)
    return re.sub(r"[\s─━┏┓┡┩┳╇└┘┴]+", " ", re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "#", line)).strip()


def stale_lines(lines: list[Line]) -> list[str]:
    """Lines of docs/rehearsal.svg that the code no longer prints, and new lines that it lacks."""
    drawn = (DOCS / "rehearsal.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>(.*?)</text>", drawn)
    plain = {form(unescaped(re.sub(r"<[^>]+>", "", text))) for text in texts}
    for _, line in lines:
        line.truncate(COLUMNS, overflow="ellipsis")
    printed = {form(line.plain) for _, line in lines}
    gone = [f"rehearsal.svg has a line that is printed no more: {each}" for each in plain - printed]
    return sorted(gone) + sorted(f"rehearsal.svg lacks: {each}" for each in printed - plain)


def unescaped(text: str) -> str:
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def stale_curves(columns: list[str]) -> list[str]:
    """Metrics that only the picture of curves or only a run has."""
    with Image.open(CURVES) as image:
        drawn = str(image.info.get(METRICS, "")).split()
    differing = sorted({*drawn} ^ {*columns})
    if not differing:
        return []
    return [f"{CURVES.name}: only in the picture or only in a run: {differing}"]


def report(stale: list[str]) -> int:
    print(*stale or ["the pictures are those of this code"], sep="\n")
    if stale:
        print("To draw them again: make pictures")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
