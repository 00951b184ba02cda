"""Train, test and save the model; the same command on a laptop, under torchrun and on SageMaker.

One process:         python src/train.py --epochs 6
One host, 2 ranks:   torchrun --nproc_per_node 2 src/train.py --batch_size 32
Two hosts, 4 ranks:  torchrun --nnodes 2 --node_rank {0,1} --master_addr HOST0 (as above)
SageMaker:           python -m smlightning submit  (of job.toml; `rehearse` simulates it here)
"""

# ruff: noqa: E402  (the command line is read before the imports that take seconds)

import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120  (python -m src.train)
from options import MODE, MONITOR, OPTIONS, DataOptions, ModelOptions, TrainingOptions
from smlightning import errors, hub
from smlightning.cluster import signals
from smlightning.options import arguments_for, declared_options, parse_command_line, with_defaults
from smlightning.training import imports


def parse(argv: list[str]) -> dict[str, Any]:
    """The options of a command line; raises UserError."""
    return parse_command_line(OPTIONS, argv, __doc__)


if __name__ == "__main__":  # --help and a wrong option answer at once
    command_line = signals.begin(parse)
imports.lightning()

import pytorch_lightning as pl

import dist
from data import Data
from model import Model
from smlightning.checkpoints.callback import Checkpoints
from smlightning.cluster.sharding import gather_weights
from smlightning.reports import log
from smlightning.reports.history import MetricHistory
from smlightning.reports.lines import LogLines
from smlightning.reports.mlflow import mlflow_loggers
from smlightning.reports.profiler import NoProfiler
from smlightning.reports.progress import ProgressReport
from smlightning.training.buckets import BucketOrder
from smlightning.training.checks import refuse_incomplete, training_checks
from smlightning.training.loop import ValidationSteps
from smlightning.training.precision import trainer_precision
from smlightning.training.seeds import StepSeed
from smlightning.training.watchdog import HangWatchdog


def train(**options: Any) -> None:
    """Train, test the best weights, save what `predict.py` loads; defaults are options.py's."""
    started = time.perf_counter()
    options = with_defaults(OPTIONS, options)
    training = TrainingOptions(**arguments_for(TrainingOptions, options))
    with dist.session() as cluster:
        hub.sign_in(cluster.local_rank, os.environ)
        log.quiet()
        pl.seed_everything(training.seed, verbose=False)
        outputs, model_dir = log.output_dirs(training.output_dir)
        data = Data(**arguments_for(DataOptions, options))
        model = Model(**arguments_for(ModelOptions, options))
        refuse_incomplete(model, data)  # now, and not when training ends
        checkpoints = Checkpoints(
            model_dir.parent / "checkpoints",
            options,
            training.checkpoint_minutes,
            training.checkpoint_steps,
            monitor=MONITOR,
            mode=MODE,
            declared=declared_options(OPTIONS),
        )
        strategy, devices, num_nodes = dist.get_initialization_info(
            training.compression, training.bucket_cap_mb, training.strategy, training.shard_size
        )
        history = MetricHistory()
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=trainer_precision(training.precision, cluster.accelerator, training.strategy),
            deterministic=training.deterministic,
            max_epochs=training.epochs,
            max_steps=training.max_steps,
            accumulate_grad_batches=training.accumulate_grad_batches,
            gradient_clip_val=training.gradient_clip_val,
            log_every_n_steps=training.log_every,
            num_sanity_val_steps=1,  # whether validation logs MONITOR is said before training
            enable_progress_bar=sys.stdout.isatty(),
            enable_model_summary=False,
            profiler=NoProfiler(),
            callbacks=[
                HangWatchdog(training.hang_seconds),
                *training_checks(),
                StepSeed(training.seed),
                BucketOrder(),
                ValidationSteps(training.val_check_steps),
                ProgressReport(training.log_every, outputs, history),
                checkpoints,
            ],
            logger=[
                LogLines(history),
                pl.loggers.TensorBoardLogger(outputs, name="tensorboard", version=""),
                *mlflow_loggers(options, os.environ),
            ],
        )
        resume_from = checkpoints.resume(training.resume)
        trainer.fit(model, datamodule=data, ckpt_path=resume_from, weights_only=True)
        checkpoints.load_best_weights(model)
        trainer.test(model, datamodule=data, verbose=False)
        gather_weights(trainer, options.get("merge", False))  # of shards; ddp has them
        if trainer.is_global_zero:
            model.save(model_dir)
            with errors.warn_on_failure("Model.draw"):
                model.draw(outputs)
            seconds = f"{time.perf_counter() - started:.0f} s"
            places = {"time": seconds, "model": str(model_dir), "curves": str(outputs)}
            log.print_result(trainer.callback_metrics, MONITOR, places)
    checkpoints.finish()


if __name__ == "__main__":  # 0: trained; 2: a mistaken command line; 1: found later; 143: stopped
    sys.exit(signals.run(train, command_line))
