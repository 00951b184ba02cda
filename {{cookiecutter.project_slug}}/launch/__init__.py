"""What runs on your machine and talks to AWS: `python -m launch --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the project
SRC = ROOT / "src"  # SageMaker's source_dir; flat modules, so it goes on the path as it does in the container

if str(SRC) not in sys.path:
    sys.path.insert(0, str(SRC))
