"""Whether `pip install -r requirements.txt` in the image leaves the image's torch alone."""

import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch import ROOT, SRC, profiles
from launch.findings import Finding, error, skipped
from launch.job import Job

FILE = SRC / "requirements.txt"
# What the image brings, built for its CUDA, NCCL, EFA and SMDDP; pip would replace it by PyPI's build.
OF_THE_IMAGE = re.compile(r"(torch|torchvision|torchaudio|triton|pytorch-triton|(nvidia|cuda)-.*)$", re.I)


def lists(package: str) -> bool:
    """Whether requirements.txt names the package, or with "" any."""
    text = FILE.read_text(encoding="utf-8", errors="replace") if FILE.is_file() else ""
    return bool(re.search(rf"(?m)^\s*{package}\b", text))


def named(job: Job, path: Path = FILE) -> Iterator[Finding]:
    """Lines of requirements.txt that ask for what the image brings."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        if OF_THE_IMAGE.match(re.split(r"[^\w-]", line.strip())[0].replace("_", "-")):
            problem = f'"{line.strip()}" would replace {images_torch(job)}'
            yield error(f"{path.parent.name}/{path.name}", problem, "remove that line: the image brings it")


def images_torch(job: Job) -> str:
    profile = profiles.profile(job)
    return f"the image's torch {profile.torch if profile else ''}, and with it CUDA, NCCL, EFA and SMDDP"


def resolved(job: Job, path: Path = FILE) -> Iterator[Finding]:
    """What pip's resolver says: a set that it cannot find, or one that would replace the image's torch."""
    key, profile = f"{path.parent.name}/{path.name}", profiles.profile(job)
    if not path.is_file() or any(named(job, path)):
        return
    if profile is None:
        yield skipped(key, "not resolved: the image's versions are not known", "see that it does not replace torch")
        return
    if not find_spec("pip"):
        yield skipped(key, "not resolved: this Python has no pip", "run make preflight, whose environment has it")
        return
    try:
        installs = [item["metadata"] for item in resolve(path, profile)]
    except subprocess.CalledProcessError as refusal:
        if re.search(r"(?i)connection (broken|error)|timed out", refusal.stderr):
            yield skipped(key, "pip reached no package index", "run preflight again with a network")
        else:
            lines = (line.removeprefix("ERROR: ") for line in refusal.stderr.splitlines() if "WARNING" not in line)
            reason = " ".join(lines)[-400:]
            yield error(key, f"pip finds no set for Python {profile.python}: {reason}", "change the pins")
        return
    for item in installs:
        if OF_THE_IMAGE.match(item["name"]):
            asks = re.compile(rf"{re.escape(item['name'])}\b")
            by = next((i["name"] for i in installs if any(map(asks.match, i.get("requires_dist", [])))), "")
            problem = f"{item['name']} {item['version']}{f', as {by} asks,' if by else ''} would replace"
            yield error(key, f"{problem} {images_torch(job)}", "pin a version that accepts the image's torch")
            return


def resolve(path: Path, profile: profiles.Profile) -> list[dict[str, Any]]:
    """What pip would install into the image: its report's entries. Nothing is downloaded but metadata.

    pip is shown an environment that holds the image's torch and nothing else, and resolves for the image's Python and
    Linux. Environment markers are those of the interpreter that runs this, since pip has no option for them.

    Raises:
        CalledProcessError: there is no solution, or no package index.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home, with_pip=False, symlinks=sys.platform != "win32")
        python = next(p for p in (home / "bin/python", home / "Scripts/python.exe") if p.exists())
        site = next(home.glob("lib/python*/site-packages"), home / "Lib/site-packages")
        torch = site / f"torch-{profile.torch}.dist-info"
        torch.mkdir(parents=True)
        (torch / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {profile.torch}\n")
        command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
        command += ["--dry-run", "--quiet", "--report", str(home / "report.json"), "--requirement", str(path)]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={profile.python}"]
        command += [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in range(17, 36)]  # 2.35 is Ubuntu 22.04's
        command += ["--retries=1", "--timeout=20"]
        subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        return json.loads((home / "report.json").read_text())["install"]
