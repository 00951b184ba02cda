"""Train, test and save the model; the same command on a laptop, under torchrun and on SageMaker.

One process:         python src/train.py --epochs 6
One host, 2 ranks:   torchrun --nproc_per_node 2 src/train.py --batch_size 32
Two hosts, 4 ranks:  torchrun --nnodes 2 --node_rank {0,1} --master_addr HOST0 (as above)
Slurm:               srun --nodes 2 --ntasks-per-node 2 python src/train.py
SageMaker:           smlightning submit  (of job.toml; `rehearse` simulates it here)
"""

import sys

from smlightning.entry import main

from options import MODE, MONITOR, Options


def train(options: Options) -> None:
    """Train, test the best weights, and save what `predict.py` loads."""
    import pytorch_lightning as pl  # these take seconds, and --help answers at once
    from smlightning.run import Run

    import dist
    from data import Data
    from model import Model

    with dist.session() as cluster:
        run = Run(options, monitor=MONITOR, mode=MODE)
        data = run.resumable(Data(**vars(options)))  # its loaders start where a run was stopped
        model = Model(**vars(options))
        strategy, devices, num_nodes = dist.get_initialization_info(
            options.strategy, options.shard_size
        )
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=run.precision(cluster.accelerator),
            deterministic=options.deterministic,
            max_epochs=options.epochs,
            max_steps=options.max_steps,
            accumulate_grad_batches=options.accumulate_grad_batches,
            gradient_clip_val=run.gradient_clip_val(model),
            log_every_n_steps=options.log_every,
            num_sanity_val_steps=1,  # shows before training whether validation logs MONITOR
            # mpirun gives a rank a terminal as stdout, and none as stderr
            enable_progress_bar=sys.stdout.isatty() and sys.stderr.isatty(),
            enable_model_summary=False,
            profiler=run.profiler,
            default_root_dir=run.outputs,
            callbacks=[
                *run.callbacks(),
            ],  # yours follow here
            logger=[*run.loggers()],  # and here
        )
        run.train_test_save(trainer, model, data)
    run.finish()


if __name__ == "__main__":  # 0: trained; 2: a wrong command line; 1: found later; 143: stopped
    sys.exit(main(train, Options, __doc__))
