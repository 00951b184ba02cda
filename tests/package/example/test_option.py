"""An option of the owner's is one line in options.py and its use."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import model
import train
from smlightning.checkpoints.callback import Checkpoints
from smlightning.options import parse_command_line


class Crash(Exception):
    """What ends a run here."""


USE = """

class Tried(Model):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 - self.options.tried)


Model = Tried
"""


def test_an_option_is_one_line_and_its_use(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reaches the command line and the loss, and stops no older run from resuming."""
    options = ["--dataset", words, "--batch_size", "16", "--log_every", "1", "--max_steps", "3"]

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Checkpoints, "on_train_end", crash)
        train.train(parse_command_line(train.Options, [*options, "--checkpoint_steps", "1"]))
    gc.collect()  # the run held a lock
    before = capsys.readouterr().out

    src = tmp_path / "src"
    shutil.copytree(Path(model.__file__).parent, src, ignore=shutil.ignore_patterns("__pycache__"))
    text, place = (src / "options.py").read_text(encoding="utf-8"), "    lr: PositiveFloat"
    assert text.count(place) == 1
    declared = '    tried: Ratio = option(0.0, "what is taken off the loss")\n'
    (src / "options.py").write_text(text.replace(place, declared + place), encoding="utf-8")
    with (src / "model.py").open("a", encoding="utf-8") as file:
        file.write(USE)
    code = (
        "import json, sys, train\n"
        "from smlightning.options import parse_command_line\n"
        "for words in map(json.loads, sys.argv[1:]):\n"
        "    train.train(parse_command_line(train.Options, words))"
    )
    other = [*options, "--output_dir", "other", "--tried", "0.5"]
    command = [sys.executable, "-c", code, json.dumps(options), json.dumps(other)]
    paths = [str(src), os.environ["PYTHONPATH"]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    said = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE
    ).stdout
    resumed, _, changed = said.partition("test/accuracy ")
    assert "resume: from" in resumed
    losses = [re.findall(r"train/loss=(\S+)", text) for text in (before, changed)]
    assert len(losses[0]) == len(losses[1]) == 3 and losses[0] != losses[1]
