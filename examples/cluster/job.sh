#!/bin/bash
# Two hosts of four GPUs: sbatch job.sh, in the project's folder, on a file system that all hosts share.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=6
#SBATCH --exclusive
#SBATCH --time=4:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # from 22.05 on, srun does not read --cpus-per-task of sbatch
if [ -d /opt/sagemaker_cluster ]; then hyperpod=--auto-resume=1; fi  # HyperPod replaces a broken host
srun $hyperpod .venv/bin/python src/train.py
status=$?
if [ "$status" = 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi  # stopped by TERM: it saved a checkpoint
exit "$status"
