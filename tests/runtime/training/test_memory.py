"""Runs of train.py with too little memory: each ends in one sentence that says what to change, also
in SageMaker's failure file.
"""

import os
import sys
from pathlib import Path

import pytest

import forked
import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux: run on Linux")

# More address space than the process has already, by so many MiB (ulimit -v).
LIMITED = """
import resource
import pandas  # pyarrow would import it within the limit
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 300 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
# A /dev/shm of 1 MiB, for this process and its workers only (CLONE_NEWNS of unshare(2)).
SMALL_SHM = """
import ctypes, subprocess, sys
if ctypes.CDLL(None).unshare(0x00020000):
    sys.exit(77)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
"""
RUN = """
import multiprocessing, runpy, sys
multiprocessing.set_start_method("fork", force=True)  # as `python src/train.py` has it
sys.argv = {line!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(before: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit status and output of `python src/train.py` on 60 texts of 20,000 bytes."""
    table = folder / "long.csv"
    rows = [f"{letter * 20000},{letter}" for letter in "ab" * 30]
    table.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    line = [str(Path(train.__file__)), "--dataset", str(table), "--max_length", "20000"]
    line += ["--epochs", "1", "--output_dir", str(folder / "outputs"), *options]
    code = f"import os\nos.chdir({str(folder)!r})\n{before}{RUN.format(line=line)}"
    variables = {**os.environ, "SM_OUTPUT_DIR": str(folder)}
    return forked.start(code, folder / "log", variables).wait(120)


def test_too_little_memory_of_the_host_is_one_sentence(tmp_path: Path) -> None:
    status, said = run(LIMITED, tmp_path, "--batch_size", "48")
    last = said.splitlines()[-1]
    assert status == 1 and last.startswith("error: not enough memory on this host"), said
    assert "lower batch_size" in last and "Traceback" not in said
    assert (tmp_path / "failure").read_text() == last.removeprefix("error: ")


def test_a_full_dev_shm_is_one_sentence(tmp_path: Path) -> None:
    """torch 2.13 fails there in a thread of the worker; without its end the run would hang."""
    status, said = run(SMALL_SHM, tmp_path, "--batch_size", "48", "--num_workers", "1")
    if status == 77:
        reason = "a mount namespace is needed: run as root on Linux"
        (pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip)(reason)
    # torch's handler ends its line with a zero byte; that of a second worker may write last
    [error] = [line for line in said.replace("\0", "").splitlines() if line.startswith("error: ")]
    assert status == 1 and error.startswith("error: the shared memory /dev/shm was full"), said
    assert "lower num_workers" in error
    own = [line for line in said.splitlines() if not line.startswith("W")]  # but torch's log
    text = "\n".join(own)  # Python prints one where torch's SIGCHLD handler meets logging's fork
    assert text.count("Traceback") == text.count("Exception ignored in"), said
    assert (tmp_path / "failure").read_text() == error.removeprefix("error: ")
