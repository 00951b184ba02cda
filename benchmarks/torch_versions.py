"""The package's tests, and a project's, on each image's Python and torch.

    python benchmarks/torch_versions.py [smddp] [mpirun] [current]

Builds an environment for each under build/, from the package index: torch's Linux builds bring
CUDA, several GB each. Not part of every CI run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parent.parent
BUILD = TEMPLATE / "build"


def interpreter(version: str) -> str | None:
    """A Python of this version, from PATH or pyenv."""
    names = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for name in filter(None, names):
        found = subprocess.run(
            [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if found.stdout.strip() == version:
            return name
    return None


def packages(project: Path) -> list[str]:
    """What the dependency groups name, but for torch and the package itself, which is installed
    by path.
    """
    groups = tomllib.loads((project / "pyproject.toml").read_text())["dependency-groups"]
    names = []
    for group in groups.values():
        for name in group:
            if isinstance(name, str) and not name.startswith(("torch==", "smlightning")):
                names.append(name)
    extras = "train,launch,rehearsal,testing"
    return [*names, "--editable", f"{project / 'vendor' / 'smlightning'}[{extras}]"]


def main(wanted: list[str]) -> int:
    BUILD.mkdir(exist_ok=True)
    shutil.rmtree(BUILD / "torch-versions", ignore_errors=True)
    project = Path(
        cookiecutter(str(TEMPLATE), no_input=True, output_dir=str(BUILD / "torch-versions"))
    )
    sys.path.insert(0, str(project / "vendor" / "smlightning"))
    from smlightning.launch.images import PROFILES

    if unknown := set(wanted) - set(PROFILES):
        names = ", ".join(sorted(unknown))
        sys.exit(f"error: {names} is no image profile; known are {', '.join(PROFILES)}")
    failed = 0
    for profile in (PROFILES[name] for name in wanted or PROFILES):
        python = interpreter(profile.python)
        if python is None:
            print(f"{profile.name}: no Python {profile.python} here; install it", flush=True)
            failed += 1
            continue
        home, started = BUILD / f"torch-{profile.torch}", time.monotonic()
        own = str(home / "bin" / "python")
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [python, "-m", "venv", str(home)],
            [
                *pip,
                f"torch=={profile.torch}",
                "--requirement",
                str(project / "src/requirements.txt"),
                *packages(project),
            ],
            [*pip, "--no-deps", "sagemaker-pytorch-training==3.0.0"],
        ):
            subprocess.run(command, check=True)
        built, started = time.monotonic() - started, time.monotonic()
        tests = subprocess.run(
            [
                own,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "tests",
                "--pyargs",
                "smlightning.testing",
            ],
            cwd=project,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        took = {
            "built_s": round(built),
            "tests_s": round(time.monotonic() - started),
            "status": tests.returncode,
        }
        print(
            json.dumps(
                {"image": profile.name, "python": profile.python, "torch": profile.torch} | took
            ),
            flush=True,
        )
        failed += bool(tests.returncode)
    return int(failed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("image", nargs="*", help="a profile of smlightning.launch.images (all)")
    sys.exit(main(parser.parse_args().image))
