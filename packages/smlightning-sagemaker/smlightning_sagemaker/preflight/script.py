"""Code of src/ with which a job trains something else than was meant, without an error."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, warning
from smlightning_sagemaker.job import launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import sent
from smlightning_sagemaker.project import Project

# Words of code in which ranks find each other: torch, Lightning, and libraries on top of both.
JOINS = re.compile(r"init_process_group|\bdist\b|Trainer|Fabric|LightningCLI|Accelerator|deepspeed")

IMPORTED = re.compile(r"(?m)^\s*(?:from|import)\s+(\w+)")


def booleans(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No argument of argparse has the type bool: bool("false") is True.

    https://docs.python.org/3/library/argparse.html#type
    """
    for name, text in sent.files(project).items():
        try:
            nodes = [*ast.walk(ast.parse(text))] if name.endswith(".py") else []
        except (ValueError, SyntaxError, RecursionError):  # imports.py reports it
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and is_boolean_argument(node):
                problem = f"line {node.lineno}: type=bool makes True of every text, of false too"
                hint = "use type=lambda text: text.lower() in ('true', '1')"
                yield warning(name, problem, hint)


def is_boolean_argument(call: ast.Call) -> bool:
    """Whether it is `parser.add_argument(..., type=bool)`."""
    types = (each.value for each in call.keywords if each.arg == "type")
    return getattr(call.func, "attr", "") == "add_argument" and any(
        isinstance(each, ast.Name) and each.id == "bool" for each in types
    )


def ranks(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A loop of the owner's joins the ranks that a launcher starts; else each trains on its own."""
    code = code_of_training(project)
    if launchers.launcher(job) != "none" and ".backward(" in code and not JOINS.search(code):
        problem = "it joins no process group, so each rank would train a model of its own"
        yield warning("src/train.py", problem, 'use a Trainer, or set distribution = "none"')


def code_of_training(project: Project) -> str:
    """train.py, the modules and packages of src/ that it imports, and those that these import."""
    texts: dict[str, str] = {}  # of a module or a whole package
    for name, text in sent.files(project).items():
        if name.endswith(".py"):
            module = name.split("/")[1].removesuffix(".py")
            texts[module] = f"{texts.get(module, '')}\n{text}"
    reached = ["train"]
    for module in reached:
        imported = IMPORTED.findall(texts.get(module, ""))
        reached += [each for each in imported if each in texts and each not in reached]
    return "\n".join(texts.get(module, "") for module in reached)
