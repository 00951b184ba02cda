"""The job's cluster, simulated on this machine: ``smlightning rehearse --help``.

``main(argv)`` is the command; ``plan.make_plan`` says what is simulated, ``attempts.run_plan``
does it, ``checks`` judges what it left, ``report`` shows it.
"""

from smlightning_sagemaker.rehearsal.command import main

__all__ = ["main"]
