"""Train a text classifier; the same command on a laptop, under torchrun and on a SageMaker cluster.

One process:         python src/train.py --epochs 6
One host, 2 ranks:   torchrun --nproc_per_node 2 src/train.py --batch_size 32
Two hosts, 2 ranks:  torchrun --nnodes 2 --node_rank {0,1} --nproc_per_node 2 --master_addr HOST0 src/train.py
SageMaker:           python -m launch submit        (job.toml says what; `python -m rehearsal` plays it here first)
"""

import inspect
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

from options import MODE, MONITOR
from runtime import command_line, imports, signals
from runtime.command_line import NonNegativeFloat, NonNegativeInt, OrMinusOne, PositiveFloat, PositiveInt, Ratio, Seed
from runtime.report import UserError, ensure_dir, format_metrics, print_table, quiet, write_failure


def train(
    *,
    dataset: str = "cldr",
    model_name: str = "bytecnn",
    epochs: PositiveInt = 6,
    batch_size: PositiveInt = 64,
    lr: PositiveFloat = 2e-3,
    output_dir: str = "outputs",
    resume: str = "auto",
    text_column: str = "",
    label_column: str = "",
    max_length: PositiveInt = 256,
    seed: Seed = 0,
    max_steps: OrMinusOne = -1,
    accumulate: PositiveInt = 1,
    clip: NonNegativeFloat = 1.0,
    weight_decay: NonNegativeFloat = 0.01,
    warmup: Ratio = 0.06,
    lr_scaling: Literal["none", "linear"] = "none",
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto",
    compile: bool = False,
    num_workers: OrMinusOne = -1,
    checkpoint_minutes: PositiveFloat = 5.0,
    checkpoint_steps: NonNegativeInt = 0,
    hang_seconds: PositiveFloat = 60.0,
    log_every: PositiveInt = 50,
    data_dir: str = "prepared",
) -> None:
    """Train, test the best weights, save what `predict.py` loads.

    Args:
        dataset: cldr (the example), training (the job's channel), a hub name, or a path (csv, jsonl, parquet, arrow)
        model_name: bytecnn, or a Hugging Face sequence-classification checkpoint by hub name or path
        epochs: passes over the training data
        batch_size: samples per rank and step; the global batch is this times world size times accumulate
        lr: highest learning rate, reached after warm-up
        output_dir: where everything goes, unless SageMaker says where (SM_MODEL_DIR, SM_OUTPUT_DATA_DIR)
        resume: auto (go on where an unfinished run of these options stopped), never, or a checkpoint's path
        text_column: name of the text column, if it cannot be told
        label_column: name of the label column, if it cannot be told
        max_length: longest text, in tokens; the rest is cut off
        seed: decides splits, order, initial weights and dropout
        max_steps: stop after so many optimizer steps; -1: as epochs say
        accumulate: batches per optimizer step
        clip: largest norm of the gradient; 0: do not clip
        weight_decay: of AdamW, on matrices only
        warmup: share of all steps in which the learning rate rises
        lr_scaling: linear multiplies lr by the world size (a heuristic; raise warmup with it)
        precision: auto is bf16-mixed on GPUs that have it, else 32-true
        compile: torch.compile the network
        num_workers: loader processes per rank; -1: 2 beside a GPU, none on a CPU
        checkpoint_minutes: between two checkpoints; an epoch's end and a stop signal make one anyway
        checkpoint_steps: optimizer steps between two checkpoints; 0: by minutes alone
        hang_seconds: longest wait for a rank in which nothing happens; at 0.6 of it it is named, and the job ends
        log_every: optimizer steps between two lines of the log
        data_dir: where prepared data is kept, per node
    """
    options = dict(locals())
    started = time.perf_counter()
    imports.lightning()
    import dist

    with dist.session() as cluster:
        import pytorch_lightning as pl
        import torch

        from data import Data
        from model import Model
        from runtime.checkpoints import Checkpoints
        from runtime.divided import DataDividedCheck
        from runtime.progress import DISABLED_FEATURES, Reporter
        from runtime.seeds import StepSeed
        from runtime.watchdog import HangWatchdog

        quiet()
        pl.seed_everything(seed, verbose=False)
        outputs = ensure_dir(Path(os.environ.get("SM_OUTPUT_DATA_DIR") or output_dir))
        model_dir = ensure_dir(Path(os.environ.get("SM_MODEL_DIR") or Path(output_dir) / "model"))
        checkpoints = Checkpoints(
            model_dir.parent / "checkpoints", options, checkpoint_minutes, checkpoint_steps,
            monitor=MONITOR, mode=MODE, data_options=inspect.signature(Data).parameters,
        )  # fmt: skip
        if precision == "auto":
            precision = "bf16-mixed" if cluster.accelerator == "gpu" and torch.cuda.is_bf16_supported() else "32-true"
        data = Data(dataset, model_name, batch_size, max_length, text_column, label_column, data_dir, num_workers, seed)
        model = Model(model_name, lr, weight_decay, warmup, lr_scaling, compile)
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,  # type: ignore[arg-type]
            max_epochs=epochs,
            max_steps=max_steps,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=clip,
            callbacks=[
                HangWatchdog(hang_seconds),
                DataDividedCheck(),
                StepSeed(seed),
                Reporter(log_every, outputs, MONITOR),
                checkpoints,
            ],
            logger=pl.loggers.TensorBoardLogger(outputs, name="tensorboard", version=""),
            **DISABLED_FEATURES,
        )
        trainer.fit(model, datamodule=data, ckpt_path=checkpoints.resume(resume), weights_only=True)
        trainer.test(model, datamodule=data, verbose=False)  # the best weights: checkpoints.py
        if trainer.is_global_zero:
            model.save(model_dir, max_length)
            model.draw(outputs)
            scores = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("test/")}
            rest = {"time": f"{time.perf_counter() - started:.0f} s", "model": f"{model_dir}", "curves": f"{outputs}"}
            print_table("Result", {name: f"{value:.4f}" for name, value in scores.items()} | rest)
            print(format_metrics({"step": trainer.global_step, **scores}))
            monitored = MONITOR.replace("val/", "test/")
            if monitored in scores:
                print(f"{monitored} {scores[monitored]:.4f}", flush=True)
            else:
                print(f"warning: test_step logs no {monitored}, as MONITOR in options.py asks", file=sys.stderr)
    checkpoints.finish()


def parse(argv: list[str]) -> dict[str, Any]:
    """The options of a command line, checked; raises UserError. The launcher checks a job's hyperparameters so."""
    return command_line.parse(train, argv, __doc__)


def main() -> int:
    """0 when the model is trained; 2 for a mistake on the command line; 1 for one found later; 143 when stopped."""
    signals.install()
    status = 2
    try:
        options = parse(sys.argv[1:])
        status = 1
        train(**options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        write_failure(str(error))
        return signals.status(status)
    return signals.complete()


if __name__ == "__main__":
    sys.exit(main())
