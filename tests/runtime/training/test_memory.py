"""A run of train.py with too little shared memory ends in one sentence that says what to change.

The sentence is in SageMaker's failure file, too.
"""

import os
import sys
from pathlib import Path

import pytest

import forked
import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux: run on Linux")

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


def test_a_full_dev_shm_is_one_sentence(tmp_path: Path) -> None:
    """torch 2.13 fails there in a thread of the worker; without its end the run would hang."""
    table = tmp_path / "long.csv"
    rows = [f"{letter * 20000},{letter}" for letter in "ab" * 30]
    table.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    line = [str(Path(train.__file__)), "--dataset", str(table), "--max_length", "20000"]
    line += ["--epochs", "1", "--output_dir", str(tmp_path / "outputs")]
    line += ["--batch_size", "48", "--num_workers", "1"]
    code = f"import os\nos.chdir({str(tmp_path)!r})\n{SMALL_SHM}{RUN.format(line=line)}"
    variables = {**os.environ, "SM_OUTPUT_DIR": str(tmp_path)}
    status, said = forked.start(code, tmp_path / "log", variables).wait(120)
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
