"""Installs the libraries of `loader_runs.LIBRARIES` into a folder: see `make loaders`.

Without what they depend on, since mosaicml-streaming cannot be resolved next to datasets 5.2: what
they import is listed here.
"""

import subprocess
import sys
from pathlib import Path

from cpu_torchvision import declare_operators

PACKAGES = (
    "litdata==0.2.76",
    "mosaicml-streaming==0.13.0", "torchvision==0.28.0", "Brotli==1.2.1", "catalogue==2.0.10",
    "cramjam==2.14.0", "python-snappy==0.7.3", "zstd==1.5.7.2",
    "webdataset==1.0.2", "braceexpand==0.1.7",
)  # fmt: skip

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*pip, "--target", str(folder), "--no-deps", *PACKAGES], check=True)
    declare_operators(folder)
