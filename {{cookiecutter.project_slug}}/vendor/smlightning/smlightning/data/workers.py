"""A loader's worker that loses a batch ends, and the run with it; else the run would hang.

A worker hands batches over in a thread of Python's queue. Where that fails, as torch's allocation
in a full /dev/shm does (torch 2.13; earlier versions die of SIGBUS), Python prints a stack trace,
drops the batch, and goes on: the main process waits for it until a watchdog ends the job.
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
    """Has the workers that are started from now on end when they lose a batch.

    Workers that are forked inherit it, as they are on Linux before Python 3.14.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # Python's own hook for it, which concurrent.futures overrides (queues.py, Queue._feed).
        hook: Any = Queue
        hook._on_queue_feeder_error = staticmethod(end_worker)


def end_worker(error: Exception, batch: object) -> None:
    """End this process where it is a loader's worker; what torch then says names the cause.

    Args:
        error: why the batch could not be handed over.
        batch: as Python's hook has it; unused.
    """
    full = errors.is_shared_memory_full(error)
    in_worker = torch.utils.data.get_worker_info() is not None
    if not (full and in_worker):
        traceback.print_exception(error)
    if in_worker and full:
        # As the kernel does for a page without room; to this thread, where it is handled at once.
        signal.pthread_kill(threading.get_ident(), signal.SIGBUS)
    elif in_worker:
        os._exit(1)
