"""The user's project: its folder, its files, and the declarations of its ``src/options.py``."""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from smlightning.errors import UserError, as_user_error, described

VARIABLE = "SMLIGHTNING_PROJECT"  # the project's folder, if commands run elsewhere


@dataclass(frozen=True)
class ProjectOptions:
    """The declarations of ``src/options.py``."""

    cls: type
    """Options: the class whose fields are the command line."""

    metrics: tuple[str, ...]
    """METRICS: every metric that a run prints."""

    monitor: str
    """MONITOR: the validation metric that marks the best weights."""

    mode: Literal["max", "min"]
    """MODE: whether the highest or the lowest value of ``monitor`` is best."""


@dataclass(frozen=True)
class Project:
    """A project's folder, and the paths in it that the package uses."""

    root: Path

    @property
    def src(self) -> Path:
        """The user's modules; SageMaker's ``source_dir``."""
        return self.root / "src"

    @property
    def job_file(self) -> Path:
        return self.root / "job.toml"

    @property
    def requirements(self) -> Path:
        """The packages that a job installs in addition to those of its image."""
        return self.src / "requirements.txt"

    def add_src_to_path(self) -> None:
        """Make the user's modules importable by their names, as in the training container."""
        if str(self.src) not in sys.path:
            sys.path.insert(0, str(self.src))

    def options(self) -> ProjectOptions:
        """Import ``src/options.py``, and nothing heavy with it; returns its declarations.

        Raises:
            UserError: the file or one of its names is missing, or is wrong.
        """
        from smlightning.options import check_monitor_name  # with jsonargparse: it takes time

        self.add_src_to_path()
        path = self.src / "options.py"
        module = _import_file("options", path)
        names = ("Options", "METRICS", "MONITOR", "MODE")
        missing = [name for name in names if not hasattr(module, name)]
        if missing:
            raise UserError(
                f"{path} does not declare {', '.join(missing)}",
                "declare it there: the tests, the launcher and the rehearsal read it",
            )
        metrics = module.METRICS
        if isinstance(metrics, str) or not all(isinstance(name, str) for name in metrics):
            problem = f"METRICS of {path} is {metrics!r}; expected a list of names"
            raise UserError(problem, 'write METRICS = ("val/loss", "test/loss"), with your names')
        check_monitor_name(module.MONITOR)
        return ProjectOptions(
            cls=module.Options,
            metrics=tuple(metrics),
            monitor=module.MONITOR,
            mode=module.MODE,
        )


def find(start: Path | None = None) -> Project:
    """The project of SMLIGHTNING_PROJECT, or the nearest one at or above ``start``.

    Args:
        start: a folder; default: the working directory.

    Raises:
        UserError: no folder has ``job.toml`` and ``src/``.
    """
    named = os.environ.get(VARIABLE)
    if start is None and named:
        folder = Path(named).resolve()
        if _is_project(folder):
            return Project(folder)
        raise UserError(
            f"{VARIABLE}={named} is not a project: it has no job.toml and src/",
            "set it to a project's folder, or unset it",
        )
    first = (start or Path.cwd()).resolve()
    for folder in (first, *first.parents):
        if _is_project(folder):
            return Project(folder)
    raise UserError(
        f"no project in {first} or above it: none of these folders has job.toml and src/",
        f"change to the project's folder, or set {VARIABLE} to it",
    )


def _is_project(folder: Path) -> bool:
    return (folder / "job.toml").is_file() and (folder / "src").is_dir()


def _import_file(name: str, path: Path) -> ModuleType:
    """The module of a file; imports it unless ``sys.modules`` has the module of this file."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None)
    if loaded is not None and file and Path(file).resolve() == path.resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(
            f"{path} does not exist",
            "restore it; for a script of your own, declare its options there "
            "(docs/bring_your_project.md)",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception) and not isinstance(error, UserError):
            hint = "correct it: the tests, the launcher and the rehearsal read it"
            raise as_user_error(error) or UserError(described(error), hint) from error
        raise
    return module
