"""End a loader's worker that loses a batch: the run ends with an error instead of a hang.

A thread of Python's queue sends a worker's batches. If torch cannot allocate memory in a full
/dev/shm (torch 2.13; earlier versions die of SIGBUS), Python prints a stack trace, drops the batch
and continues. The main process would wait for the batch until the hang timeout ends the job.
"""

import os
import signal
import threading
import traceback
from multiprocessing.queues import Queue
from typing import Any

import pytorch_lightning as pl
import torch.utils.data

from smlightning import errors


class LostBatches(pl.Callback):
    """Ends workers that lose a batch, if they start after `setup`.

    Only forked workers inherit the hook: the default on Linux before Python 3.14.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # The hook of Python, which concurrent.futures overrides, too (queues.py, Queue._feed).
        hook: Any = Queue
        hook._on_queue_feeder_error = staticmethod(end_worker)


def end_worker(error: Exception, batch: object) -> None:
    """End this process if it is a loader's worker; torch's error in the run then has the cause.

    Args:
        error: from sending the batch.
        batch: an argument of Python's hook; unused.
    """
    full = errors.is_shared_memory_full(error)
    in_worker = torch.utils.data.get_worker_info() is not None
    if not (full and in_worker):
        traceback.print_exception(error)
    if in_worker and full:
        # As the kernel does if there is no memory; this thread handles it at once.
        signal.pthread_kill(threading.get_ident(), signal.SIGBUS)
    elif in_worker:
        os._exit(1)
