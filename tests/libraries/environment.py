"""An environment that has a library next to everything of this one, whose versions stay."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from cpu_torchvision import declare_operators
from images.environment import CPU_INDEX, run
from libraries.libraries import Library

COMPLETE = "complete"  # the file in a complete environment, with the packages that were asked for


def library_python(library: Library, environments: Path) -> Path:
    """The Python of ``environments``/NAME, which pip fills once.

    Raises:
        CalledProcessError: pip has failed.
    """
    folder = environments / library.name
    complete = folder / COMPLETE
    python = folder / "bin" / "python"
    asked = repr((library.packages, library.alone, sys.prefix))
    if not complete.is_file() or complete.read_text() != asked:
        print(f"installing {', '.join(library.packages)} into {folder}", flush=True)
        _fill(folder, python, library)
        complete.write_text(asked)
    return python


def _fill(folder: Path, python: Path, library: Library) -> None:
    run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)], Path())
    (own,) = (folder / "lib").glob("python*/site-packages")
    (own / "project.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip"]
    pins = folder / "pins.txt"
    frozen = run([*pip, "list", "--format=freeze", "--exclude-editable"], folder).splitlines()
    kept = [line for line in frozen if not line.startswith(("smlightning", "pip="))]
    pins.write_text("\n".join(kept))
    install = [*pip, "--python", str(python), "install", "--quiet", "--no-compile"]
    install += ["--constraint", str(pins), *library.packages]
    install += ["--no-deps"] if library.alone else []
    vision = any(each.startswith("torchvision") for each in library.packages)
    try:
        run([*install, *(["--extra-index-url", CPU_INDEX] if vision else [])], folder)
    except subprocess.CalledProcessError:  # not every network reaches that index
        run(install, folder)
    torchrun = folder / "bin" / "torchrun"  # the rehearsal's, which finds the library
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    if vision:
        declare_operators(own)
