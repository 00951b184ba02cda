"""Tools of gpu.py: projects, data, models with random weights, runs of train.py."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
from common import HERE, Run, words

BERT = """
import sys, json
from pathlib import Path
from common import LETTERS
from smlightning_sagemaker.testing.checkpoints import write_bert
write_bert(Path(sys.argv[1]), LETTERS, **json.loads(sys.argv[2]))
"""


class Lab:
    """Projects, models and data, made at their first use."""

    def __init__(self, folder: Path, on_gpu: bool, small: bool) -> None:
        self.folder, self.on_gpu, self.small = folder, on_gpu, small
        self.runs = 0

    @functools.cached_property
    def project(self) -> Path:
        place = common.generate(self.folder)
        common.write_words(place / "texts.csv", 1000, 120, right=0.9)
        return place

    def bert(self, **shape: int) -> str:
        """A checkpoint with random weights."""
        text = json.dumps(shape)
        place = self.folder / f"bert-{abs(hash(text))}"
        if not place.exists():
            Run(self.project, ["-c", BERT, str(place), text]).succeed()
        return str(place)

    def start(
        self, probe: str = "", ranks: int = 1, hosts: bool = True,
        variables: dict[str, str] | None = None, **options: Any,
    ) -> tuple[Run, Path]:  # fmt: skip
        """Start train.py with a probe of watch.py; the run, and its output folder."""
        self.runs += 1
        project = self.project
        chosen: dict[str, Any] = {"dataset": "texts.csv", "batch_size": 16, "epochs": 99}
        chosen |= {"output_dir": f"outputs{self.runs}", **options}
        program = [common.WATCH, probe] if probe else ["src/train.py"]
        facts = {"FACTS": str(project / "facts.json"), **(variables or {})}
        run = Run(project, [*program, *words(chosen)], ranks, hosts, **facts)
        return run, project / str(chosen["output_dir"])

    def train(self, *, limit: float = 900, **options: Any) -> tuple[Run, Path]:
        run, output = self.start(**options)
        return run.succeed(limit), output

    def facts(self, probe: str, **options: Any) -> dict[str, Any]:
        """The measurements of a probe."""
        (self.project / "facts.json").unlink(missing_ok=True)
        self.train(probe=probe, **options)
        return json.loads((self.project / "facts.json").read_text())

    def benchmark(self, name: str, *arguments: str) -> Any:
        """The measurements of another benchmark."""
        report = self.folder / "report.json"
        command = [sys.executable, str(HERE / name), *arguments, "--json", str(report)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError((ended.stdout + ended.stderr)[-800:])
        found = json.loads(report.read_text())["found"]
        report.unlink()
        return found
