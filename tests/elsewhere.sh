#!/usr/bin/env bash
# Runs a command of pytest under the settings of other machines, two at a time, and prints on which it failed:
#     tests/elsewhere.sh .venv/bin/python -m pytest tests/tools
# The command begins with a Python. ON="gpu home" chooses some of the machines; `home` needs root.
set -u
machines=${ON:-pip gpu turkish home umask_077 pythons settings}
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT

# A constraint on torch, wheels of another torch, and an index that is not there.
pip() {
  printf 'torch<=2.14.1\n' > "$place/constraints.txt"
  touch "$place/links/torch-99.0-py3-none-any.whl"
  printf '[global]\nconstraint = %s\nfind-links = %s\nextra-index-url = http://127.0.0.1:9/simple\n' \
    "$place/constraints.txt" "$place/links" > "$place/pip.conf"
  PIP_CONFIG_FILE=$place/pip.conf PIP_FIND_LINKS=$place/links "$@"
}

# One GPU for torch and nvidia-smi; CUDA_VISIBLE_DEVICES hides it from torch.
gpu() {
  printf '#!/bin/sh\necho "GPU 0: pretended (UUID: GPU-0)"\n' > "$place/bin/nvidia-smi"
  chmod +x "$place/bin/nvidia-smi"
  cat > "$place/site/pretended_gpu.py" <<'PYTHON'
import os, sys
from importlib.machinery import PathFinder

class Pretend:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch.cuda":
            return None
        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.device_count = lambda: int(os.environ.get("CUDA_VISIBLE_DEVICES", "0") != "")
            module.is_available = lambda: module.device_count() > 0
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Pretend)
PYTHON
  pretended=$place/environment  # the command's own, with one file more
  site=$("$1" -c 'import site; print(site.getsitepackages()[0])')
  prefix=$("$1" -c 'import sys; print(sys.prefix)')
  "$1" -m venv --without-pip "$pretended"
  cp -rsn "$prefix"/bin "$pretended/"
  find "$prefix" -mindepth 1 -maxdepth 1 ! -name bin ! -name lib ! -name 'pyvenv.cfg' -exec ln -sn {} "$pretended/" ';' 2>/dev/null
  echo "import site; site.addsitedir('$site'); exec(open('$place/site/pretended_gpu.py').read(), {})" \
    > "$(echo "$pretended"/lib/python*/site-packages)/pretended_gpu.pth"
  env -u CUDA_VISIBLE_DEVICES PATH="$place/bin:$PATH" "$pretended/bin/python" "${@:2}"
}

turkish() {
  localedef -i tr_TR -f UTF-8 "$place/tr_TR.UTF-8" || return
  LOCPATH=$place LANG=tr_TR.UTF-8 LC_ALL=tr_TR.UTF-8 LANGUAGE=tr "$@"
}

# A home in which not even root can write.
home() {
  HOME=$place/home unshare --mount sh -ec 'mount --bind -o ro "$HOME" "$HOME"
    if touch "$HOME/file" 2>/dev/null; then echo "HOME can be written"; exit 1; fi
    exec "$@"' sh "$@"
}

umask_077() { (umask 077 && "$@"); }

# Programs named python and uv that do not work.
pythons() {
  for name in python python3 python3.11 python3.12 python3.13 uv; do
    printf '#!/bin/sh\nexit 3\n' > "$place/bin/$name"
    chmod +x "$place/bin/$name"
  done
  PATH="$place/bin:$PATH" "$@"
}

# Other settings that a shell may have.
settings() {
  mkdir -p "$place/home/.aws" "$place/home/.config/sagemaker"
  printf '[default]\nregion = eu-west-9\ncredential_process = false\n' > "$place/home/.aws/config"
  printf '[core]\n\thooksPath = /dev/null\n[commit]\n\tgpgsign = true\n' > "$place/home/.gitconfig"
  printf 'not: [yaml' > "$place/home/.config/sagemaker/config.yaml"
  HOME=$place/home AWS_PROFILE=none AWS_REGION=eu-west-9 AWS_DEFAULT_REGION=eu-west-9 HF_HUB_OFFLINE=1 \
    HF_HOME=/dev/null/hub HF_TOKEN=none GIT_DIR=/dev/null GIT_AUTHOR_DATE=never RANK=1 WORLD_SIZE=4 SM_HOSTS='["a"]' \
    PYTHONWARNINGS=ignore PYTHONOPTIMIZE='' PYTHONDONTWRITEBYTECODE=1 TZ=Asia/Kathmandu COLUMNS=20 NO_COLOR=1 \
    FORCE_COLOR=1 TERM=dumb "$@"
}

# Runs the command on one machine, whose files are its own, and prints its name, verdict and output.
run_on() {
  machine=$1
  shift
  place=$all/$machine
  mkdir "$place" "$place/bin" "$place/links" "$place/site" "$place/home"
  verdict=passed
  if ! "$machine" "$@" > "$place/log" 2>&1; then
    verdict=failed
    touch "$place/failed"
  fi
  printf '== %s %s\n%s\n' "$machine" "$verdict" "$(cat "$place/log")"
}

for machine in $machines; do
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
  run_on "$machine" "$@" &
done
wait
if ls "$all"/*/failed > /dev/null 2>&1; then
  for mark in "$all"/*/failed; do echo "failed on: $(basename "$(dirname "$mark")")" >&2; done
  exit 1
fi
