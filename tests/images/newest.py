"""Proves newer versions than any image has: of torch, of Python, and of every package.

    make newest                                            # torch's newest, with this Python
    make newest ARGS="2.14.1 2.15.0 --python 3.13 --record"

As `images.prove`, with the newest versions that pip finds in place of the lock's. The project's own
tests run, too, those of resumed kills among them.
"""

import argparse
import json
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path

from images import prove
from images.environment import new_environment, python_of, run
from smlightning_sagemaker.job.images import PROFILES, Profile

AHEAD = PROFILES["current"]  # the profile that these versions will be of, some day


def newest_python(profile: Profile, project: Path) -> Path:
    """The Python of .venv/newest-<torch>-<python>, which pip fills anew."""
    folder = Path(sys.prefix) / f"newest-{profile.torch}-{profile.python}"
    print(f"installing torch {profile.torch} into {folder}, which takes minutes", flush=True)
    install = new_environment(folder, profile)
    (runtime,) = (project / "src").glob("*.whl")
    (tools,) = (project / "tools").glob("*.whl")
    names = re.findall(r"(?m)^([a-z][\w\[\]-]*)", (project / "src/requirements.in").read_text())
    wheels = [str(runtime), f"{tools}[rehearsal,testing]"]
    run([*install, f"torch=={profile.torch}", *wheels, *names], project)
    container = f"sagemaker-pytorch-training=={profile.pytorch_toolkit}"
    run([*install, "--no-deps", container], project)
    return folder / "bin" / "python"


def prove_project(environment: prove.Environment) -> prove.Row:
    """The tests of the generated project, without preflight, which asks for an image's versions."""
    words = [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    return prove.tested(
        environment, "tests of the project", [*words, "tests", "-k", "not preflight"],
        environment.project,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser("make newest", description=__doc__.partition("\n")[0])
    parser.add_argument("torch", nargs="*", help="its versions; without one, pip's newest")
    parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]))
    parser.add_argument("--record", action="store_true", help="keep the results in the repository")
    arguments = parser.parse_args()
    asked = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    if run([python_of(arguments.python), *asked], Path()).strip() != arguments.python:
        parser.error(f"found no Python {arguments.python}; install it, for example with pyenv")
    record = {}
    for torch in arguments.torch or [newest_torch()]:
        profile = replace(
            AHEAD, torch=torch, python=arguments.python, launchers=("torch_distributed",)
        )
        name = f"torch {torch}, Python {arguments.python}"
        folder = prove.cleared(prove.BUILD / "newest" / f"{torch}-{arguments.python}")
        tests = (prove.prove_tests, prove_project)
        record[name] = {**prove.prove(profile, folder, newest_python, tests), "profile": name}
    failed = prove.failures(record)
    if arguments.record and not failed:
        prove.keep(record)
    print(*(f"failed: {line}" for line in failed), sep="\n")
    return 1 if failed else 0


def newest_torch() -> str:
    """The newest release that pip finds."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--json"]
    found: str = json.loads(run(command, Path()))["latest"]
    return found


if __name__ == "__main__":
    sys.exit(main())
