#!/usr/bin/env bash
# Expected: an error in train_dataloader that the script catches leaves torch's DataLoader as it was.
# True:     DataLoader.__init__ and __setattr__ stay replaced by Lightning's for the rest of the process: the function
#           that replaces them restores them only if train_dataloader returns.
# Source:   pytorch-lightning 2.6.6 with torch 2.13.0, lightning_fabric/utilities/data.py (_replace_dunder_methods).
. "$(dirname "$0")/lib/environment.sh"
packages pytorch-lightning==2.6.6 torch==2.13.0 numpy
seen "ValueError: no file" "__init__ is torch's: False" "__setattr__ is torch's: False" <<'PY'
import pytorch_lightning as pl
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return None

    def train_dataloader(self):
        raise ValueError("no file")


init, setattr_ = DataLoader.__init__, DataLoader.__setattr__
off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
try:
    pl.Trainer(accelerator="cpu", **dict.fromkeys(off, False)).fit(Model())
except ValueError as error:
    print(f"ValueError: {error}")
print("__init__ is torch's:", DataLoader.__init__ is init)
print("__setattr__ is torch's:", DataLoader.__setattr__ is setattr_)
PY
