"""An entry for the container that passes SageMaker's stop signal on to the training script: `forward_stop` in job.toml.

A stop is SIGTERM to the container's process 1. In AWS's images that is bash, which passes nothing on
(sagemaker-training-toolkit#125, #173), so the script learns nothing and is killed 120 s later. With
``PyTorch(..., container_entry_point=entry.FORWARDING)`` process 1 is this: it starts what the image would have started,
and hands SIGTERM to every process whose command line names train.py: launchers and ranks. They save and leave.

Proven on a replica of the container's process tree (tests/test_entry.py), not on AWS. Without it, checkpoints limit
what a stop costs: ``checkpoint_minutes``.
"""

_SCRIPT = (  # one line of at most 256 characters: AWS takes no more (CreateTrainingJob, ContainerEntrypoint)
    "start_with_right_hostname.sh train & c=$!; "
    "trap 'for p in /proc/[0-9]*; do grep -qa train[.]py $p/cmdline && kill ${p#/proc/}; done' TERM; "
    "while kill -0 $c 2>&-; do wait $c; done; wait $c"
)

FORWARDING = ["bash", "-c", _SCRIPT]
