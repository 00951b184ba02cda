"""Signal forwarding: an entry for the container that forwards SageMaker's SIGTERM to training (`forward_stop`).

A stop is SIGTERM to the container's process 1. In AWS's images that is bash, which forwards nothing
(sagemaker-training-toolkit#125, #173), so the script is not signalled and is killed 120 s later. With
``PyTorch(..., container_entry_point=entry.FORWARDING)`` process 1 is this: it starts what the image would have started,
and sends SIGTERM to every process whose command line names train.py, except launchers: torchrun and mpirun would
give the ranks less time than SageMaker does (30 s, and 1 s). The ranks save and exit, and the launchers after them.

Proven on a replica of the container's process tree (tests/test_entry.py), not on AWS. Without it, checkpoints limit
what a stop costs: ``checkpoint_minutes``.
"""

_SCRIPT = (  # one line of at most 256 characters: AWS takes no more (CreateTrainingJob, ContainerEntrypoint)
    "start_with_right_hostname.sh train & c=$!; "
    "trap 'for p in /proc/[0-9]*; do grep -qa train[.]py $p/cmdline && "
    '! grep -qaE "(mpi|ddp|torch)run" $p/cmdline && kill ${p#/proc/}; done\' TERM; '
    "while kill -0 $c 2>&-; do wait $c; done; wait $c"
)

FORWARDING = ["bash", "-c", _SCRIPT]
