"""Train, test and save the model; the same command on a laptop, under torchrun and on a SageMaker cluster.

One process:         python src/train.py --epochs 6
One host, 2 ranks:   torchrun --nproc_per_node 2 src/train.py --batch_size 32
Two hosts, 2 ranks:  torchrun --nnodes 2 --node_rank {0,1} --nproc_per_node 2 --master_addr HOST0 src/train.py
SageMaker:           python -m launch submit        (of job.toml; `python -m rehearsal` simulates it here first)
"""

import os
import sys
import time
from typing import Any

from options import MODE, MONITOR, OPTIONS, DataOptions, ModelOptions, TrainingOptions
from runtime import command_line, hub, imports, report, signals


def train(**options: Any) -> None:
    """Train, test the best weights, save what `predict.py` loads. Options that are not given have their defaults."""
    started = time.perf_counter()
    options = command_line.complete(OPTIONS, options)
    training = TrainingOptions(**command_line.select(TrainingOptions, options))
    imports.lightning()
    import dist

    with dist.session() as cluster:
        hub.sign_in(cluster.local_rank, os.environ)
        import pytorch_lightning as pl

        from data import Data
        from model import Model
        from runtime.checkpoints import Checkpoints
        from runtime.divided import DataDividedCheck
        from runtime.loop_state import ValidationSteps
        from runtime.precision import trainer_precision
        from runtime.progress import Reporter, refuse_without_test
        from runtime.seeds import StepSeed
        from runtime.tracking import mlflow_loggers
        from runtime.watchdog import HangWatchdog

        report.quiet()
        pl.seed_everything(training.seed, verbose=False)
        outputs, model_dir = report.output_dirs(training.output_dir)
        checkpoints = Checkpoints(
            model_dir.parent / "checkpoints", options, training.checkpoint_minutes, training.checkpoint_steps,
            monitor=MONITOR, mode=MODE, declared=command_line.declared(OPTIONS),
        )  # fmt: skip
        data = Data(**command_line.select(DataOptions, options))
        model = Model(**command_line.select(ModelOptions, options))
        strategy, devices, num_nodes = dist.get_initialization_info(training.compression, training.bucket_cap_mb)
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=trainer_precision(training.precision, cluster.accelerator),
            deterministic=training.deterministic,
            max_epochs=training.epochs,
            max_steps=training.max_steps,
            accumulate_grad_batches=training.accumulate_grad_batches,
            gradient_clip_val=training.gradient_clip_val,
            log_every_n_steps=training.log_every,
            num_sanity_val_steps=1,  # whether validation logs MONITOR is said before training
            enable_progress_bar=sys.stdout.isatty(),
            enable_model_summary=False,
            callbacks=[
                HangWatchdog(training.hang_seconds),
                DataDividedCheck(),
                StepSeed(training.seed),
                ValidationSteps(training.val_check_steps),
                Reporter(training.log_every, outputs),  # a logger too: runtime/progress.py
                checkpoints,
            ],
            logger=[
                pl.loggers.TensorBoardLogger(outputs, name="tensorboard", version=""),
                *mlflow_loggers(options, os.environ),
            ],
        )
        refuse_without_test(model, data)  # now, and not when training ends
        trainer.fit(model, datamodule=data, ckpt_path=checkpoints.resume(training.resume), weights_only=True)
        trainer.test(model, datamodule=data, verbose=False)  # the best weights: checkpoints.py
        if trainer.is_global_zero:
            model.save(model_dir)
            with report.optional("Model.draw"):
                model.draw(outputs)
            rest = {"time": f"{time.perf_counter() - started:.0f} s", "model": f"{model_dir}", "curves": f"{outputs}"}
            report.print_result(trainer.callback_metrics, MONITOR, rest)
    checkpoints.finish()


def parse(argv: list[str]) -> dict[str, Any]:
    """The options of a command line, checked; raises UserError."""
    return command_line.parse(OPTIONS, argv, __doc__)


def main() -> int:
    """0 when the model is trained; 2 for a mistake on the command line; 1 for one found later; 143 when stopped."""
    return signals.run(parse, train)


if __name__ == "__main__":
    sys.exit(main())
