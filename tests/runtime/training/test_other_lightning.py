"""Classes of the package `lightning` end in a sentence, wherever they are used."""

import os
import subprocess
import sys
from pathlib import Path

from lightning_copy import copy_lightning

MIXED = """
import lightning as L
import pytorch_lightning
from lightning.pytorch.callbacks import StochasticWeightAveraging
from smlightning import errors
from smlightning.cluster.session import current_cluster
from smlightning.cluster.strategies import OneProcess
from smlightning.training.checks import check_package

check_package([pytorch_lightning.LightningModule(), pytorch_lightning.Callback(), object()])
class Model(L.LightningModule): pass
class Data(L.LightningDataModule): pass
for part in (Model(), Data(), StochasticWeightAveraging(0.1)):
    try:
        check_package([pytorch_lightning.Callback(), part])
    except errors.UserError as error:
        print(error.problem)
try:
    L.Trainer(strategy=OneProcess(current_cluster()), accelerator="cpu", logger=False)
except ValueError as error:
    print(errors.as_user_error(error).problem)
    print(errors.as_user_error(error).hint)
"""


def test_classes_of_lightning_are_rejected(tmp_path: Path) -> None:
    path = os.pathsep.join([str(copy_lightning(tmp_path)), *filter(None, sys.path)])
    printed = subprocess.run(
        [sys.executable, "-c", MIXED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    end = "a class of the package lightning, and this project uses pytorch_lightning"
    *parts, trainer, hint = [line for line in printed if "pytorch_lightning" in line]
    names = ("Model", "Data", "StochasticWeightAveraging")
    assert parts == [f"{name} derives from {end}" for name in names]
    assert trainer == f"the Trainer is {end}"
    assert "`import pytorch_lightning as L` for `import lightning as L`" in hint
