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
JOINS = re.compile(
    r"init_process_group|init_device_mesh|torch\.distributed|\bi?dist\b|Trainer|Fabric|LightningCLI"
    r"|Accelerator|deepspeed|ignite|horovod|hvd"
)
OTHER_PARSER = re.compile("jsonargparse|LightningCLI")  # which reads "false" as False


def booleans(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No argument of argparse has the type bool: bool("false") is True.

    https://docs.python.org/3/library/argparse.html#type
    """
    for name, text in sent.files(project).items():
        if not name.endswith(".py") or "bool" not in text or OTHER_PARSER.search(text):
            continue
        for node in sent.python_nodes(text):
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
    if launchers.launcher(job) == "none":
        return
    code = code_of_training(project)
    if ".backward(" in code and not JOINS.search(code):
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
        for name in sorted(imported(texts.get(module, ""))):
            if name in texts and name not in reached:
                reached.append(name)
    return "\n".join(texts.get(module, "") for module in reached)


def imported(text: str) -> set[str]:
    """The top-level names of the modules that a text imports, in functions too."""
    found: set[str] = set()
    for node in sent.python_nodes(text):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
