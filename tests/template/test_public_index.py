"""Commands never install our packages from an index, where anybody may publish these names.

An index on this machine has a foreign 99.0 and a foreign build of this very version of each, and
redirects to this machine's own index for every other package.
"""

import base64
import hashlib
import http.server
import os
import re
import subprocess
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from projects import ENVIRONMENT, Project, bake
from smlightning import __version__

FOREIGN = ("99.0", f"{__version__}-9")  # the second is a build of this version, which pip prefers
PACKAGES = ("smlightning", "smlightning_sagemaker")
WHERE = "import sys, {0} as s; print(getattr(s, 'FOREIGN', s.__file__))"


def foreign_wheel(folder: Path, package: str, version: str) -> None:
    """A wheel that says by its module that it is foreign; it has every extra."""
    info = f"{package}-{version.partition('-')[0]}.dist-info"
    extras = "".join(f"Provides-Extra: {name}\n" for name in ("rehearsal", "testing"))
    files = {
        f"{package}/__init__.py": f"FOREIGN = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\n"
        f"Version: {version.partition('-')[0]}\n{extras}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The index's address."""
    files = tmp_path_factory.mktemp("foreign")
    upstream = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    for package in PACKAGES:
        (files / package).mkdir()
        for version in FOREIGN:
            foreign_wheel(files / package, package, version)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            words = self.path.strip("/").split("/")
            if words[0] == "files":
                body = (files / words[1] / words[2]).read_bytes()
            elif words[1].replace("-", "_") in PACKAGES:
                folder = files / words[1].replace("-", "_")
                links = [f"/files/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
                body = "".join(f'<a href="{link}">{Path(link).name}</a>' for link in links).encode()
            else:
                self.send_response(302)
                self.send_header("Location", f"{upstream}/{words[1]}/")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if words[0] == "simple" else "binary/zip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def run(folder: Path, *words: str, index: str) -> str:
    """Output of a command with only ``index``, without this machine's settings of pip and uv."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV"))
    }
    given = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index}
    ended = subprocess.run(words, cwd=folder, env=clean | given, text=True, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_projects_wheels_are_installed_and_without_them_the_foreign_ones(
    project: Project, index: str, tmp_path: Path
) -> None:
    """By the lock's line and the Makefile's path; the second shows that the index works."""
    lock = re.findall(r"^\./smlightning\S+ \\\n.*\n", project.read("src/requirements.txt"), re.M)
    (tmp_path / "lock.txt").write_text("".join(lock), encoding="utf-8")
    (tools,) = (project.path / "tools").glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    pip = (python, "-m", "pip", "install", "--quiet", "--force-reinstall")
    src = project.path / "src"
    run(src, *pip, "--no-deps", "--requirement", str(tmp_path / "lock.txt"), index=index)
    run(project.path, *pip, f"./tools/{tools.name}", index=index)
    run(project.path, *pip, "jsonargparse[signatures]", index=index)
    for package in reversed(PACKAGES):  # the tools import the runtime
        where = run(tmp_path, python, "-c", WHERE.format(package), index=index)
        assert where.strip().startswith(str(tmp_path))
        run(tmp_path, *pip, "--no-deps", package, index=index)
        assert run(tmp_path, python, "-c", WHERE.format(package), index=index).strip() in FOREIGN


def test_no_group_names_our_packages(project: Project) -> None:
    groups = tomllib.loads(project.read("pyproject.toml"))["dependency-groups"]
    assert groups and "smlightning" not in str(groups)


def test_make_lock_uses_the_index_of_pip(tmp_path: Path) -> None:
    """uv itself would look on PyPI for internal packages."""
    fresh = bake(tmp_path)
    nobody = "http://127.0.0.1:9/simple"
    before = fresh.read("src/requirements.txt")
    command = ("make", "lock", f"VENV={ENVIRONMENT}", "-o", f"{ENVIRONMENT}/.lock")
    variables = {"PIP_INDEX_URL": nobody, "PIP_CONFIG_FILE": os.devnull}
    ended = fresh.run(*command, "ARGS=--upgrade-package rich", check=False, **variables)
    assert ended.returncode and nobody in ended.stderr
    assert fresh.read("src/requirements.txt") == before
