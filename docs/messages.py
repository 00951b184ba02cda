"""Write the page of all messages of a run from the code: `make reference`.

A message is what a `UserError` says, or a line that begins with ``warning:`` or has ``inexact``.
The page has the text between the values, which it writes as "…", and leaves out messages of fewer
than three words. A test compares the page.
"""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "packages" / "smlightning" / "smlightning"
PAGE = next(ROOT.glob("{{*}}")) / "docs" / "messages.md"
HEAD = """\
# Messages of a run

A command of the template writes this page from the code: errors and warnings of training that you
can correct, and what to do. `…` is a value. [Troubleshooting](troubleshooting.md) explains
causes, and has messages of torch, AWS and launchers.
"""
TABLE = "| message | do |\n|---|---|"
HEADINGS = {  # a folder of the runtime, or "" for the files next to them
    "training": "Model and training",
    "data": "Data",
    "checkpoints": "Checkpoints and resuming",
    "cluster": "Ranks and launchers",
    "": "Options, files, saved models",
}
ERRORS = {"UserError", "ClusterError", "OptionError", "MissingColumn"}


def page() -> str:
    """The whole page."""
    texts = [HEAD]
    for folder, heading in HEADINGS.items():
        rows = {row for path in (RUNTIME / folder).glob("*.py") for row in messages(path)}
        found = sorted(row for row in rows if len(re.findall(r"\w+", row[0])) >= 3)
        lines = [f"| {code(problem)} | {code(hint)} |" for problem, hint in found]
        texts += [f"## {heading}\n", TABLE, *lines, ""]
    return "\n".join(texts)


def code(text: str) -> str:
    """A text as Markdown's code in a cell of a table."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}".replace("|", r"\|") if text else ""


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """Problems and hints of a file."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for scope in (module, *functions):
        for call in (node for node in own_nodes(scope) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            names = {**assigned(module), **assigned(scope, before=call.lineno)}
            texts = [clean(rendered(argument, names)) for argument in call.args[:2]]
            if name in ERRORS and len(texts) == 2:
                yield texts[0], texts[1] if texts[1] != "…" else ""
            elif name == "print" and re.match(r"warning: |\w+: inexact", "".join(texts[:1])):
                problem, _, hint = texts[0].partition("; ")
                yield problem, hint


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a module or function, without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from own_nodes(child)


def assigned(scope: ast.AST, before: float = math.inf) -> dict[str, str]:
    """The text of each name that is assigned before a line; a later one may use an earlier one."""
    names: dict[str, str] = {}
    for node in own_nodes(scope):
        is_name = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if is_name and node.lineno < before:
            names[node.targets[0].id] = rendered(node.value, names)
    return names


def rendered(node: ast.AST, names: dict[str, str]) -> str:
    """A text with "…" in place of each value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(rendered(part, names) for part in node.values)
    if isinstance(node, ast.BinOp):
        return rendered(node.left, names) + rendered(node.right, names)
    if isinstance(node, ast.IfExp):
        return rendered(node.body, names)
    return names.get(node.id, "…") if isinstance(node, ast.Name) else "…"


def clean(text: str) -> str:
    return re.sub(r"…(\s*…)+", "…", " ".join(text.split()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
