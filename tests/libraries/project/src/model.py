"""`Model`: the library's module. It can stop its own run, and prints a digest of its weights."""

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from parts import Network

from options import Options
from smlightning import pretrained
from smlightning.cluster import signals


class Model(Network):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.chosen = Options(**options)

    def log(self, name: str, *value: Any, **more: Any) -> None:
        """One value of all ranks, whether or not the library asks for it."""
        super().log(name, *value, **{**more, "sync_dist": True})

    def on_train_batch_end(self, *batch: Any) -> None:
        """Send SIGTERM after the step of STOP_AT: to torchrun where it started this process."""
        super().on_train_batch_end(*batch)
        step = self.trainer.global_step
        if os.environ.get("STOP_AT") == str(step) and self.trainer.global_rank == 0:
            started_by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
            os.kill(os.getppid() if started_by_torchrun else os.getpid(), signal.SIGTERM)
            while not signals.requested():  # the other rank waits, and gets it, too
                time.sleep(0.05)

    def on_train_end(self) -> None:
        super().on_train_end()
        digest = hashlib.sha256()
        for tensor in self.state_dict().values():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            digest.update(whole.cpu().contiguous().numpy().tobytes())
        if self.trainer.global_rank == 0:
            line = f"last weights {self.trainer.global_step} {digest.hexdigest()}\n"
            print(line, end="", flush=True)  # one piece: the log has another rank's lines, too

    def save(self, directory: Path) -> None:
        pretrained.save_own(self, {}, directory)


def load(directory: Path) -> Network:
    with pretrained.model_errors(directory):
        network = Network()
        pretrained.load_own(network, directory)
    return network.eval()
