"""Runs the benchmarks behind docs/measurements.md, one after the other: `make bench`.

    make bench                              # all, an hour on a quiet machine
    make bench ARGS="--small"               # only whether each runs, in about a minute: .ci/run
    make bench ARGS="--against ../older"    # compare with another checkout

Each prints its figures; the status is 1 if one failed. `make stress` and `make gpu` are apart.
"""

import os
import subprocess
import sys

import common

COMPARED = ("start.py", "steps_per_second.py", "preparation.py", "checkpoints.py")
ALL = (*COMPARED, "sharding.py")  # gpu.py runs it small


def main() -> int:
    arguments = common.parser_of(__doc__, compares=True).parse_args()
    options = ["--small"] * arguments.small
    names = COMPARED if arguments.small else ALL
    if arguments.against:
        options += ["--against", str(arguments.against)]
        names = COMPARED
    failed = []
    for name in names:
        print(f"# {name} {' '.join(options)}", flush=True)
        command = [sys.executable, str(common.HERE / name), *options]
        if subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode:
            failed.append(name)
    if failed:
        print(f"error: failed: {', '.join(failed)}; run each by its name", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
