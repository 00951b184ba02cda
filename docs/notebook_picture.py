"""Run all cells of a generated project's notebook, and draw what they say: docs/notebook.svg.

    python docs/notebook_picture.py docs/notebook.svg

The kernel is real, and so is the rehearsal; AWS is moto's, within the kernel. The job does not run:
its log is three lines and its model the rehearsal's, as in tests/template/test_launch.py, whose
parts these are. Pictures that a cell shows are named.
"""

import argparse
import io
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "template"), str(ROOT / "tests" / "package")]
sys.path += [str(next(ROOT.glob("{{*}}")) / "vendor" / "smlightning")]
sys.path += [str(folder) for folder in (ROOT / "tests" / "package").iterdir() if folder.is_dir()]
WIDTH = 108  # columns

from rehearsal_picture import FONT  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="of the SVG")
    arguments = parser.parse_args()
    import nbformat
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.panel import Panel
    from rich.text import Text

    import test_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="notebook-") as temporary:
        folder = Path(temporary)
        words = folder / "words.csv"
        rows = [f"{letters},{name}" for name in ("greek", "latin") for letters in spelt(name)]
        words.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
        project = test_launch.small(folder, instance_count=1, distribution="torch_distributed")
        notebook = test_launch.Notebook(
            project, FOLDER=str(folder), WORDS=str(words), AWS_DEFAULT_REGION="us-east-1"
        )
        before = {
            "load(project.job_file": test_launch.MOTO,
            "preflight.rehearsal(job": test_launch.KEPT,
            "if send and sending": "send = True",
            "follow.follow": test_launch.LOG,
            "fetch.fetch": test_launch.MODEL,
        }
        try:
            if not notebook.run_all(before):
                sys.exit("\n".join(notebook.shown.values()))
        finally:
            notebook.close()
        for cell in nbformat.read(project.path / "launch.ipynb", as_version=4).cells:
            if cell.cell_type == "markdown":
                console.print(Markdown(cell.source), "")
                continue
            console.print(Panel(Text(cell.source), border_style="dim"))
            said, image, _ = notebook.shown[cell.source].partition("{'image/png'")
            said = said.replace(str(folder), "…")
            console.print(Text.from_ansi(said.strip()), "[dim](a picture)[/]" if image else "", "")
    picture = console.export_svg(title="launch.ipynb, all cells run")
    arguments.path.write_text(FONT.sub("", picture), encoding="utf-8")
    return 0


def spelt(alphabet: str) -> list[str]:
    """Words in an alphabet, easy to learn."""
    letters = {"greek": "αβγδεζηθ", "latin": "abcdefgh"}[alphabet]
    return [letters[i % 8] + letters[i // 8 % 8] + letters[i // 64 % 8] for i in range(120)]


if __name__ == "__main__":
    sys.exit(main())
