"""Build both packages as wheels into the template, and pin the runtime's in its requirements.

The wheels are reproducible: hatchling writes the same bytes for the same files. A test compares
each file in them with the source.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

PACKAGES = Path(__file__).parent
(TEMPLATE,) = PACKAGES.parent.glob("{{*}}")
PINNED = re.compile(r"^\./smlightning-\S+\.whl( \\\n    --hash=sha256:\w+)?", re.M)


def build(name: str, folder: Path) -> Path:
    """Replace the package's wheel in a folder."""
    for older in folder.glob("smlightning*.whl"):
        older.unlink()
    command = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder))
    subprocess.run([sys.executable, *command, str(PACKAGES / name)], check=True)
    (wheel,) = folder.glob("smlightning*.whl")
    return wheel


def pin(wheel: Path) -> None:
    """Write the wheel's name and hash into requirements.in and requirements.txt next to it."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for name, line in (
        ("requirements.in", f"./{wheel.name}"),
        ("requirements.txt", f"./{wheel.name} \\\n    --hash=sha256:{digest}"),
    ):
        path = wheel.with_name(name)
        text, count = PINNED.subn(line.replace("\\", r"\\"), path.read_text(encoding="utf-8"))
        assert count == 1, f"{path} does not name the wheel once"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    build("smlightning-sagemaker", TEMPLATE / "tools")
    pin(build("smlightning", TEMPLATE / "src"))
