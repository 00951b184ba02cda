"""Draw the README's pictures from real runs of generated projects: `make pictures`.

docs/verdicts.svg: what preflight and a rehearsal print at the end, a still picture.
docs/curves.png: the curves of a training.

With --check nothing is written. A preflight, a rehearsal and a short training show whether the
pictures still have the lines and metrics that the code prints; the exit status is 1 if not.
"""

import argparse
import csv
import os
import pty
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from cookiecutter.main import cookiecutter
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.text import Text

DOCS = Path(__file__).resolve().parent
VERDICTS = DOCS / "verdicts.svg"
COMMAND = [sys.executable, "-m", "smlightning_sagemaker"]
REHEARSE = ["rehearse"]
# Changes of job.toml: a launcher that preflight rejects for these instances, and their price.
CHANGES = {"distribution": '"smddp"', "price_per_hour": "1.408"}
CURVES = DOCS / "curves.png"
SHORT = ["--max_steps", "2", "--val_check_steps", "1", "--log_every", "1"]
METRICS = "metrics"  # of a png: where its columns are kept

COLUMNS = 110
SHOWN = re.compile(r"(error|job|cost|preflight|\d hosts ×) |[┏┃┡└]|│ \S")
LEFT_OUT = re.compile(r"│ model-predicts")  # after 20 steps the answer is still a wrong one
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-HJKSTfhlsu]")  # cursor movements, not colours

WIDTH, HEIGHT, MARGIN = 8.4, 19, 16  # of a character, of a line, around the text
STYLES = {  # by rich's names
    "bold": 'font-weight="bold"', "dim": 'opacity="0.6"', "color(1)": 'fill="#ff7b72"',
    "color(2)": 'fill="#7ee787"', "color(3)": 'fill="#f2cc60"', "color(4)": 'fill="#79c0ff"',
    "color(5)": 'fill="#d2a8ff"', "color(6)": 'fill="#76e3ea"',
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        project = generate(Path(folder))
        lines = verdicts(project)
        if not check:
            VERDICTS.write_text(svg(lines), encoding="utf-8")
        metrics = train(project, check)
        if check:
            return report([*stale_lines(lines), *stale_curves(metrics)])
        keep_curves(project / "outputs" / "curves.png", metrics)
    return 0


def generate(folder: Path) -> Path:
    """A project with default answers."""
    return Path(cookiecutter(str(DOCS.parent), no_input=True, output_dir=str(folder)))


def environment(project: Path) -> dict[str, str]:
    package = os.pathsep.join(map(str, DOCS.parent.glob("packages/smlightning*")))
    size = {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    return {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **size}


def verdicts(project: Path) -> list[Text]:
    """The lines of the picture: preflight of a job with a mistake, then a rehearsal of it."""
    right = (project / "job.toml").read_text(encoding="utf-8")
    wrong = right
    for key, value in CHANGES.items():
        wrong = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", wrong)
    (project / "job.toml").write_text(wrong, encoding="utf-8")
    failed = printed(project, ["preflight", "--offline"], status=1)
    (project / "job.toml").write_text(right, encoding="utf-8")
    rehearsed = printed(project, REHEARSE, status=0)
    title = max(at for at, line in enumerate(rehearsed) if line.plain.startswith("2 hosts"))
    lines = [Text("$ make preflight", "bold"), *chosen(failed), Text()]
    lines += [Text("$ make rehearse", "bold"), *chosen(rehearsed[title:])]
    for line in lines:
        line.truncate(COLUMNS, overflow="ellipsis")
    return lines


def printed(project: Path, words: list[str], status: int) -> list[Text]:
    """The lines that a command prints on a terminal."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=project, env=environment(project), stdout=end, stderr=end
    )
    os.close(end)
    lines: list[Text] = []
    with os.fdopen(terminal, encoding="utf-8", errors="replace", newline="\n") as output:
        try:
            for line in output:
                text = CONTROL.sub("", line).rstrip("\r\n").rpartition("\r")[2]
                lines.append(Text.from_ansi(text))
        except OSError:  # how Linux says that the other end is closed
            pass
    if process.wait() != status:
        sys.exit(f"{words} failed:\n" + "\n".join(line.plain for line in lines))
    return lines


def chosen(lines: list[Text]) -> list[Text]:
    """The lines with a verdict, and of a check its first line."""
    return [each for each in lines if SHOWN.match(each.plain) and not LEFT_OUT.match(each.plain)]


def svg(lines: list[Text]) -> str:
    """A terminal with these lines."""
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = len(lines) * HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        "<title>make preflight rejects a job; make rehearse lists each check</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#161b22"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
        'font-size="14" fill="#e6edf3">',
    ]
    for number, line in enumerate(lines, 1):
        y = MARGIN + number * HEIGHT - 5
        length = line.cell_len * WIDTH
        out.append(
            f'<text x="{MARGIN}" y="{y}" textLength="{length:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{spans(line)}</text>'
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


def stale_lines(lines: list[Text]) -> list[str]:
    """Lines of the picture that the code no longer prints, and new lines that it lacks."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", VERDICTS.read_text(encoding="utf-8"))
    drawn = {form(unescaped(re.sub(r"<[^>]+>", "", text))) for text in texts}
    now = {form(line.plain) for line in lines}
    gone = [f"{VERDICTS.name} has a line that is printed no more: {each}" for each in drawn - now]
    return sorted(gone) + sorted(f"{VERDICTS.name} lacks: {each}" for each in now - drawn)


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
