"""Makes `lightning.pytorch` and `lightning.fabric` other names of the modules of pytorch_lightning.

The distributions lightning and pytorch-lightning hold the same code twice, and the classes of one
are strangers to the other. Here an import under either name gives the one module, so a class is the
same object for the project, for the libraries that it uses and for this package. `lightning` itself
stays as it is, with Fabric, seed_everything and its version. Another version of it is an error.

The modules of pytorch_lightning are the ones that are loaded, since this package requires them:
an environment always has pytorch_lightning. If somebody imported lightning before this package,
its modules stay, and `pytorch_lightning` is their other name.
"""

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import Any

from smlightning.errors import UserError

PAIRS = (("pytorch_lightning", "lightning.pytorch"), ("lightning_fabric", "lightning.fabric"))
BEGINNINGS = ("lightning", "pytorch_lightning")


class AliasLoader(Loader):
    """Gives another name to the module ``real``, which its first import loads."""

    def __init__(self, real: str) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # importlib has set that of the other name


class AliasFinder:
    """Finds modules by their other name."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(BEGINNINGS):
            return None
        for real, alias in PAIRS:
            if _is_loaded(alias):
                real, alias = alias, real
            if name == alias:
                check_versions()
            if f"{name}.".startswith(f"{alias}."):
                return _spec(name, real + name.removeprefix(alias))
        return None


def _spec(name: str, real: str) -> ModuleSpec | None:
    if real not in sys.modules and not importlib.util.find_spec(real):
        return None
    return ModuleSpec(name, AliasLoader(real))


def _is_loaded(name: str) -> bool:
    """Whether there is a module of this name that is not another one's alias."""
    return getattr(sys.modules.get(name), "__name__", "") == name


def check_versions() -> None:
    """Check that both names mean the same version.

    Raises:
        UserError: they differ.
    """
    expected = version("pytorch-lightning")
    found = getattr(sys.modules.get("lightning"), "__version__", expected)
    if found != expected:
        raise UserError(
            f"lightning {found} and pytorch-lightning {expected} are installed; expected the same "
            "version of both",
            f"write lightning=={expected} in src/requirements.in, run make lock and make setup",
        )


def install() -> None:
    """Let all imports from now on give one Lightning; a second call changes nothing.

    Raises:
        SystemExit: both are loaded already.
    """
    if AliasFinder in sys.meta_path:
        return
    for pair in PAIRS:
        if all(map(_is_loaded, pair)):
            raise SystemExit(
                f"error: {pair[0]} and {pair[1]} were both imported before smlightning, and their "
                "classes do not mix; write `import smlightning` above the first import of either"
            )
    sys.meta_path.insert(0, AliasFinder)  # type: ignore[arg-type]
