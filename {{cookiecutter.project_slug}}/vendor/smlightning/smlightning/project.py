"""Where the owner's project lies: its folder, its files, what its ``src/options.py`` declares."""

import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from smlightning.errors import UserError

VARIABLE = "SMLIGHTNING_PROJECT"  # names the project's folder, where commands run elsewhere


@dataclass(frozen=True)
class ProjectOptions:
    """What ``src/options.py`` declares."""

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
    """A project's folder, with the places that the package knows in it."""

    root: Path

    @property
    def src(self) -> Path:
        """The owner's modules; SageMaker's ``source_dir``."""
        return self.root / "src"

    @property
    def job_file(self) -> Path:
        return self.root / "job.toml"

    @property
    def requirements(self) -> Path:
        """What a job installs besides its image's packages."""
        return self.src / "requirements.txt"

    @property
    def notebook(self) -> Path:
        return self.root / "launch.ipynb"

    @property
    def pyproject(self) -> Path:
        return self.root / "pyproject.toml"

    @property
    def tests(self) -> Path:
        return self.root / "tests"

    def add_src_to_path(self) -> None:
        """Let the owner's modules be imported by their names, as in the training container."""
        if str(self.src) not in sys.path:
            sys.path.insert(0, str(self.src))

    def options(self) -> ProjectOptions:
        """What ``src/options.py`` declares; imports that file, and with it nothing heavy.

        Raises:
            UserError: the file is missing, or does not declare one of its names.
        """
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
            problem = f"METRICS of {path} is {metrics!r}, and no list of names"
            raise UserError(problem, 'write METRICS = ("val/loss", "test/loss"), with your names')
        refuse_no_name(module.MONITOR)
        return ProjectOptions(
            cls=module.Options,
            metrics=tuple(metrics),
            monitor=module.MONITOR,
            mode=module.MODE,
        )


def refuse_no_name(monitor: object) -> None:
    """Refuse a MONITOR that is no text: a tuple, where a comma stands behind it."""
    if not isinstance(monitor, str):
        problem = f"MONITOR of src/options.py is {monitor!r}, and no name of a metric"
        raise UserError(problem, 'set it to one, as in MONITOR = "val/loss"')


def find(start: Path | None = None) -> Project:
    """The project that SMLIGHTNING_PROJECT names; else the nearest one upwards from ``start``.

    Args:
        start: a folder; by default the working directory.

    Raises:
        UserError: no folder holds ``job.toml`` and ``src/``.
    """
    named = os.environ.get(VARIABLE)
    if start is None and named:
        folder = Path(named).resolve()
        if _is_project(folder):
            return Project(folder)
        raise UserError(
            f"{VARIABLE}={named} is no project: it does not hold job.toml and src/",
            "set it to a project's folder, or unset it",
        )
    first = (start or Path.cwd()).resolve()
    for folder in (first, *first.parents):
        if _is_project(folder):
            return Project(folder)
    raise UserError(
        f"no project in {first} or above it: none of these folders holds job.toml and src/",
        f"change to the project's folder, or set {VARIABLE} to it",
    )


def _is_project(folder: Path) -> bool:
    return (folder / "job.toml").is_file() and (folder / "src").is_dir()


def _import_file(name: str, path: Path) -> ModuleType:
    """The module of a file, which is imported unless ``sys.modules`` has that of this very file."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None)
    if loaded is not None and file and Path(file).resolve() == path.resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{path} does not exist", "restore it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception) and not isinstance(error, UserError):
            raise _refused_import(path, error) from error
        raise
    return module


def _refused_import(path: Path, error: Exception) -> UserError:
    """Why an owner's file cannot be imported, with the line of it."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = f"{path}, line {line}" if line else str(path)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    problem = f"{place}: {type(error).__name__}: {text}"
    return UserError(problem, "correct it: the tests, the launcher and the rehearsal read it")
