"""Commands never install `smlightning` from an index, where anybody may publish that name.

An index on this machine has a foreign 99.0 and a foreign build of this very version, and
redirects to this machine's own index for every other package.
"""

import base64
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from projects import ENVIRONMENT, Project, bake
from smlightning import __version__

FOREIGN = ("99.0", f"{__version__}-9")  # the second is a build of this version, which pip prefers
OURS = "vendor/smlightning"
WHERE = "import smlightning as s; print(getattr(s, 'FOREIGN', s.__file__))"


def foreign_wheel(folder: Path, version: str) -> None:
    """A wheel that says by its module that it is foreign; it has every extra."""
    info = f"smlightning-{version.partition('-')[0]}.dist-info"
    extras = "".join(f"Provides-Extra: {name}\n" for name in ("train", "launch", "testing"))
    files = {
        "smlightning/__init__.py": f"FOREIGN = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: smlightning\n"
        f"Version: {version.partition('-')[0]}\n{extras}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"smlightning-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The index's address."""
    files = tmp_path_factory.mktemp("foreign")
    upstream = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    for version in FOREIGN:
        foreign_wheel(files, version)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            words = self.path.strip("/").split("/")
            if words[0] == "files":
                body = (files / words[1]).read_bytes()
            elif words == ["simple", "smlightning"]:
                names = sorted(path.name for path in files.iterdir())
                body = "".join(f'<a href="/files/{name}">{name}</a>' for name in names).encode()
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


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    return bake(tmp_path)


def run(project: Project, *words: str, index: str, **variables: str) -> str:
    """Output of a command with only ``index``, without this machine's settings of pip and uv."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV"))
    }
    given = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    ended = subprocess.run(
        [uv.find_uv_bin() if word == "uv" else word for word in words],
        cwd=project.path,
        env=clean | given | variables,
        text=True,
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def packages(project: Project) -> dict[str, dict[str, str]]:
    """Package → source in the project's uv.lock."""
    lock = tomllib.loads(project.read("uv.lock"))
    return {package["name"]: package["source"] for package in lock["package"]}


def name_it(project: Project) -> None:
    """An owner's group that names the package, in place of the project's groups."""
    path = project.path / "pyproject.toml"
    before, _, rest = path.read_text().partition("[dependency-groups]")
    _, sources, after = rest.partition("[tool.uv.sources]")
    assert sources
    path.write_text(f'{before}[dependency-groups]\nown = ["smlightning"]\n{sources}{after}')


def remove(project: Project, line: str) -> None:
    path = project.path / "pyproject.toml"
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, ""))


SOURCE = 'smlightning = { path = "vendor/smlightning", editable = true }'


def test_uv_installs_the_projects_own_package_and_without_its_source_the_foreign_one(
    fresh: Project, index: str
) -> None:
    """The second shows that the foreign package can be installed."""
    # No group names it, so pip, which reads no [tool.uv.sources], never looks for it.
    groups = tomllib.loads(fresh.read("pyproject.toml"))["dependency-groups"]
    assert groups and "smlightning" not in str(groups)
    name_it(fresh)
    run(fresh, "uv", "sync", "--only-group", "own", index=index)
    assert packages(fresh)["smlightning"] == {"editable": OURS}
    where = run(fresh, ".venv/bin/python", "-c", WHERE, index=index).strip()
    assert where == str(fresh.path / OURS / "smlightning" / "__init__.py")
    remove(fresh, SOURCE)
    run(fresh, "uv", "sync", "--only-group", "own", index=index)
    assert packages(fresh)["smlightning"] == {"registry": index}
    assert run(fresh, ".venv/bin/python", "-c", WHERE, index=index).strip() == FOREIGN[0]


def test_make_lock_uses_the_index_of_pip(fresh: Project) -> None:
    """uv itself would look on PyPI for internal packages."""
    nobody = "http://127.0.0.1:9/simple"
    installed = [part for name in (".lock", "pins.txt") for part in ("-o", f"{ENVIRONMENT}/{name}")]
    command = ("make", "lock", f"VENV={ENVIRONMENT}", *installed, "ARGS=--upgrade-package rich")
    before = fresh.read("src/requirements.txt")
    ended = fresh.run(*command, check=False, PIP_INDEX_URL=nobody, PIP_CONFIG_FILE=os.devnull)
    assert ended.returncode and nobody in ended.stderr
    assert fresh.read("src/requirements.txt") == before


ARCHIVE = """
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.project import find
with open("code.tar.gz", "wb") as file:
    source_archive.write(file, find().src)
"""


@pytest.mark.parametrize(
    ("kind", "tool"), [("folder", "pip"), pytest.param("wheel", "uv", marks=pytest.mark.long)]
)
def test_make_installs_the_projects_own_package(
    kind: str, tool: str, fresh: Project, index: str
) -> None:
    """And a job's archive, made there, holds it."""
    ours = (fresh.path / OURS / "smlightning" / "__init__.py").read_bytes()
    if kind == "wheel":
        wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "vendor", OURS)
        fresh.run(sys.executable, *wheel)
        shutil.rmtree(fresh.path / OURS)
        remove(fresh, SOURCE)
    path = os.environ["PATH"]
    if tool == "uv":
        programs = fresh.path / "programs"
        programs.mkdir()
        (programs / "uv").symlink_to(uv.find_uv_bin())
        path = f"{programs}{os.pathsep}{path}"
    only_uv = {"PIP_INDEX_URL": ""} if tool == "uv" else {}
    run(fresh, "make", ".venv/.launch", index=index, PATH=path, **only_uv)
    where = run(fresh, ".venv/bin/python", "-c", WHERE, index=index).strip()
    assert where.startswith(str(fresh.path)) and (OURS in where) == (kind == "folder")
    run(fresh, ".venv/bin/python", "-c", ARCHIVE, index=index)
    with tarfile.open(fresh.path / "code.tar.gz") as archive:
        member = archive.extractfile("smlightning/__init__.py")
        assert member and member.read() == ours
