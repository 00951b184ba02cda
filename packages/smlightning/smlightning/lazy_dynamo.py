"""Lightning and torch's optimizers without torch._dynamo, which takes a second to import.

Lightning asks it for a class, to test instances. An optimizer's step, DDP and
torch.use_deterministic_algorithms tell it, or ask it, what matters to code that is compiled. Until
somebody imports torch._dynamo, by torch.compile, torch.export or by name, `answers` takes its place
in these functions, and in no others. The import itself first gives each its own code again, so
nothing that is compiled can tell.

Another version of torch is left as it is: there, as without this module, an optimizer's first step
imports torch._dynamo.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

NAME = "torch._dynamo"
PROVEN = ("2.13.",)  # beginnings of torch's versions with which tests ran
INDUCTOR = "torch._inductor.config"
# Modules that import torch._dynamo at their top, for OptimizedModule or torch.compiler.disable.
IMPORTERS = (
    "lightning_fabric.wrappers",
    "pytorch_lightning.utilities.compile",
    "pytorch_lightning.trainer.connectors.logger_connector.result",
)
HANDLED = {NAME, INDUCTOR, *IMPORTERS}  # `loader_of` knows them


class _StandIn(type):
    """Instances and subclasses are those of the real class; without its module there are none."""

    module: str

    def real(cls) -> Any:
        return getattr(sys.modules.get(cls.module), cls.__name__, ())

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real())


def stand_in(module: str, name: str) -> Any:
    """A class for ``isinstance`` and annotations, instead of importing the one of ``module``."""
    return _StandIn(name, (), {"module": module})


OptimizedModule = stand_in("torch._dynamo.eval_frame", "OptimizedModule")
ATTRIBUTE = "_dynamo_is_not_loaded"  # of torch: `answers`
# `import torch._dynamo` binds torch.
ANSWERED = {NAME: "torch", INDUCTOR: "torch", "_dynamo": ATTRIBUTE, "_inductor": ATTRIBUTE}
_undo: list[Callable[[], None]] = []


def _ddp_mode() -> str:
    """The default of torch._dynamo.config.optimize_ddp; who sets it imports torch._dynamo."""
    return "ddp_optimizer"


def _disable(function: Any) -> Any:
    """Does what torch.compiler.disable does, as soon as somebody imports torch._dynamo."""
    import torch

    if NAME not in sys.modules:
        _call_directly(function)
    return torch._disable_dynamo(function)


class _Answers(SimpleNamespace):
    """Names of torch._dynamo, torch._inductor and torch.compiler that are used without them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch.compiler"), name)


answers = _Answers(
    graph_break=lambda: None,
    disable=_disable,
    utils=SimpleNamespace(get_optimize_ddp_mode=_ddp_mode),
    config=SimpleNamespace(_get_optimize_ddp_mode=_ddp_mode),  # torch 2.5
)


def __getattr__(name: str) -> Any:
    """A name of torch._dynamo for a module of `IMPORTERS` in another version of Lightning."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module(NAME), name)


def install() -> None:
    """Let torch's optimizers and DDP work without torch._dynamo until it is imported."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if NAME in sys.modules or hasattr(torch, ATTRIBUTE):
        return
    setattr(torch, ATTRIBUTE, answers)
    _answer(torch.use_deterministic_algorithms)
    _answer(DistributedDataParallel.__init__)
    compiled_in = torch._disable_dynamo.__code__.co_filename
    optimizers = [*_subclasses(torch.optim.Optimizer)]
    for cls in (torch.optim.Optimizer, DistributedDataParallel, *optimizers):
        for method in vars(cls).values():
            for function in _wrapped(method):
                if function.__code__.co_name == "_use_grad":
                    _answer(function)
                elif function.__code__.co_filename == compiled_in:
                    _call_directly(function.__wrapped__)  # type: ignore[attr-defined]


def restore() -> None:
    """Give torch its own code again."""
    while _undo:
        _undo.pop()()


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _wrapped(function: Any) -> Iterator[FunctionType]:
    """A function and those that functools.wraps says are in it."""
    while isinstance(function, FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def _answer(function: Any) -> None:
    """Let a function find torch._dynamo's names in `answers`."""
    own = function.__code__
    function.__code__ = _renamed(own, ANSWERED)
    _undo.append(lambda: setattr(function, "__code__", own))


def _call_directly(function: Any) -> None:
    """Let what torch._disable_dynamo makes of a function call it, without torch._dynamo.disable."""
    if not hasattr(function, "__dynamo_disable"):
        setattr(function, "__dynamo_disable", function)
        _undo.append(lambda: delattr(function, "__dynamo_disable"))


def _renamed(code: CodeType, names: dict[str, str]) -> CodeType:
    """Code, with that of classes and functions in it, in which names of ``names`` are others."""
    constants: list[Any] = [*code.co_consts]
    for number, constant in enumerate(constants):
        if isinstance(constant, CodeType):
            constants[number] = _renamed(constant, names)
    found = [names.get(name, name) for name in code.co_names]
    return code.replace(co_names=tuple(found), co_consts=tuple(constants))


class DelegatingLoader(Loader):
    """Passes everything on to another loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # a module's source, a package's files

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module


class ImporterLoader(DelegatingLoader):
    """Runs a module of `IMPORTERS`, which finds the names that it imports here."""

    def exec_module(self, module: ModuleType) -> None:
        install()
        code = self.loader.get_code(module.__name__)
        if NAME not in sys.modules:
            code = _renamed(code, {NAME: __name__, "compiler": ATTRIBUTE})
        exec(code, vars(module))  # noqa: S102  as importlib does


class InductorLoader(DelegatingLoader):
    """Runs INDUCTOR, and sets what torch.use_deterministic_algorithms has set before."""

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if hasattr(answers.config, "deterministic"):
            module.deterministic = answers.config.deterministic  # type: ignore[attr-defined]


def loader_of(name: str) -> type[DelegatingLoader] | None:
    """The loader of a module that is about to be imported, if it needs one of these."""
    if name == NAME:
        restore()
    if not version("torch").startswith(PROVEN):
        return None
    return {NAME: None, INDUCTOR: InductorLoader}.get(name, ImporterLoader)
