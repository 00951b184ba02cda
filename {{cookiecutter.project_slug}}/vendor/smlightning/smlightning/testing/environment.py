"""The environment that tests run in: nothing of this machine but what is listed here.

A user's settings of pip, git, AWS, Hugging Face, the locale and the terminal change what programs
do and print, and so do GPUs. USE_GPUS=1 lets tests see the GPUs.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Programs and libraries, temporary files, the way to the network, and what tests are told.
KEPT = frozenset(
    """
    PATH LD_LIBRARY_PATH TMPDIR TEMP TMP USER LOGNAME SYSTEMROOT COMSPEC PATHEXT
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    PIP_CERT PIP_CLIENT_CERT PIP_PROXY PIP_TRUSTED_HOST PIP_INDEX_URL PIP_CACHE_DIR
    PYTHONPATH OMP_NUM_THREADS SMLIGHTNING_PROJECT REQUIRE_TOOLS USE_GPUS
    """.split()  # noqa: SIM905
)
KEPT_PREFIXES = ("PYTEST_", "COV_")
SET = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "CUDA_VISIBLE_DEVICES": "",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GIT_CONFIG_NOSYSTEM": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "XDG_CONFIG_DIRS": os.devnull,  # /etc/xdg: sagemaker/config.yaml
}
HOME = "home-of-tests-"  # the beginning of its name
GIT = "[safe]\n\tdirectory = *\n"  # the checkout may be another user's, as in a container


def of_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that tests and processes of theirs have, from those of this process."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.upper() in KEPT or name.startswith(KEPT_PREFIXES)
    }
    fixed = dict(SET)
    if environment.get("USE_GPUS"):
        del fixed["CUDA_VISIBLE_DEVICES"]
        if "CUDA_VISIBLE_DEVICES" in environment:
            kept["CUDA_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
    if _is_home(environment.get("HOME", "")):
        kept["HOME"] = environment["HOME"]
    return {"OMP_NUM_THREADS": "1", **kept, **fixed}  # tests run beside each other


def enter() -> None:
    """Give this process the environment of tests, with an empty home; once is enough.

    The programs of the running Python come first on PATH.
    """
    if not _is_home(os.environ.get("HOME", "")):
        os.environ["HOME"] = _new_home()
        programs = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    variables = of_tests(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    os.umask(0o022)


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
