"""The environment of the template's own tests: only the variables that are listed here.

A user's settings of pip, git, AWS, Hugging Face, the locale and the terminal change what programs
do and print. A project's tests keep them (smlightning_sagemaker.testing.environment).
"""

import ast
import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from smlightning_sagemaker.testing.environment import of_tests

# Programs and libraries, temporary files, the network, and settings of the tests.
KEPT = frozenset(
    """
    PATH LD_LIBRARY_PATH TMPDIR TEMP TMP USER LOGNAME SYSTEMROOT COMSPEC PATHEXT
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CUDA_VISIBLE_DEVICES
    PYTHONPATH OMP_NUM_THREADS SMLIGHTNING_PROJECT REQUIRE_TOOLS USE_GPUS UPDATE_NOTEBOOK
    RECORD_LOSSES
    """.split()  # noqa: SIM905
)
KEPT_PREFIXES = ("PYTEST_", "COV_")
SET = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GIT_CONFIG_NOSYSTEM": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "XDG_CONFIG_DIRS": os.devnull,  # /etc/xdg: sagemaker/config.yaml
}
# Settings of pip by which this machine reaches packages.
ROUTE = frozenset(
    """
    PIP_CERT PIP_CLIENT_CERT PIP_PROXY PIP_TRUSTED_HOST PIP_KEYRING_PROVIDER PIP_CACHE_DIR
    PIP_INDEX_URL PIP_NO_INDEX
    """.split()  # noqa: SIM905
)
HOME = "home-of-tests-"  # the beginning of its name
GIT = "[safe]\n\tdirectory = *\n"  # the checkout may be another user's, as in a container


def listed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the template's tests have, from those of this process."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.upper() in KEPT or name.startswith(KEPT_PREFIXES)
    }
    if _is_home(environment.get("HOME", "")):
        kept["HOME"] = environment["HOME"]
    return {**of_tests(kept), **_reaching(environment), **SET}


def enter() -> None:
    """Give this process the environment of tests, with an empty home; once is enough.

    The programs of the running Python come first on PATH.
    """
    if not _is_home(os.environ.get("HOME", "")):  # else a process with tests started this one
        os.environ.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        os.environ |= _route()  # which may be in the user's home
        os.environ["HOME"] = _new_home()
        programs = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    variables = listed(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    os.umask(0o022)


def _reaching(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables of pip, among these, by which this machine reaches packages."""
    names = ROUTE | ({"PIP_FIND_LINKS"} if settings.get("PIP_NO_INDEX") else set())
    return {name: settings[name] for name in names & settings.keys()}


def _route() -> dict[str, str]:
    """Variables of pip with which this machine reaches packages, from pip's files and variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = {}
    for section in ("global", "install", ":env:"):  # the later one wins
        for name, value in re.findall(rf"(?m)^{section}\.(.+?)=(.+)$", listed):
            settings[f"PIP_{name.upper().replace('-', '_')}"] = str(ast.literal_eval(value))
    return _reaching(settings)


def _is_home(path: str) -> bool:
    return Path(path).name.startswith(HOME) and Path(path).is_dir()


def _new_home() -> str:
    """A home that is removed when this process ends, and not when a process forked from it does."""
    home = Path(tempfile.mkdtemp(prefix=HOME))
    (home / ".gitconfig").write_text(GIT, encoding="utf-8")
    atexit.register(_remove, home, os.getpid())
    return str(home)


def _remove(home: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(home, ignore_errors=True)
