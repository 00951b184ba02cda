# Sourced by each script next to it: installs packages in a temporary folder, and compares what a program prints.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONWARNINGS=ignore

packages() {  # packages REQUIREMENT…: a new environment with these, installed by your own pip's settings
  "${PYTHON:-python3}" -m venv --without-pip environment
  "${PYTHON:-python3}" -m pip --python environment/bin/python install --quiet --no-compile "$@" > log 2>&1 ||
    { tail -n 5 log; echo "the installation failed"; exit 2; }
  export PATH="$folder/environment/bin:$PATH" HOME="$folder" TMPDIR="$folder"  # nothing is left behind
}

seen() {  # seen LINE…: the program on standard input prints these lines, run by `python` or by "$RUN"
  cat > program.py
  ${RUN:-python} program.py > printed 2> log || { tail -n 5 log; echo "the program failed"; exit 2; }
  cat printed
  printf '%s\n' "$@" > expected
  diff expected printed > /dev/null || { echo "changed; expected:"; cat expected; exit 1; }
}
