"""Runs the benchmarks behind docs/evidence.md, one after the other: `make bench`.

    make bench                              # all, an hour on a quiet machine
    make bench ARGS="--small"               # only whether each runs, in about a minute: .ci/run
    make bench ARGS="--against ../older"    # compare with another checkout

Each prints its figures; the status is 1 if one failed. `make stress` and `make gpu` are apart.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPARED = ("steps_per_second.py", "preparation.py", "checkpoints.py")
OTHERS = ("sharding.py", "baselines.py", "estimate.py", "scale.py")
ELSEWHERE = ("sharding.py", "scale.py")  # gpu.py and tests/package/cluster/test_scale.py run them
SMALL = {"estimate.py": "--tiny"}


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--small", action="store_true", help="only whether each runs")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    parser.add_argument("--only", nargs="+", choices=COMPARED + OTHERS)
    arguments = parser.parse_args()
    failed = []
    names: tuple[str, ...] = COMPARED if arguments.against else COMPARED + OTHERS
    if arguments.small:
        names = tuple(name for name in names if name not in ELSEWHERE)
    for name in arguments.only or names:
        command = [sys.executable, str(HERE / name)]
        if arguments.small:
            command.append(SMALL.get(name, "--small"))
        if arguments.against and name in COMPARED:
            command += ["--against", str(arguments.against)]
        print(f"# {' '.join(command[1:])}", flush=True)
        began = time.monotonic()
        status = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        print(f"# {time.monotonic() - began:.0f} s, status {status}", flush=True)
        failed += [name] * bool(status)
    if failed:
        print(f"error: failed: {', '.join(failed)}; run each by its name", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
