"""The steps of launch.ipynb. One object holds what was checked, and lets nothing else be sent."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker import findings, preflight
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.follow import fetch, follow
from smlightning_sagemaker.job import aws, estimator, price, request, sending, sent_jobs
from smlightning_sagemaker.job.job import from_table, leaves, load
from smlightning_sagemaker.job.request import Destination

PREFLIGHT, REHEARSAL = "preflight", "rehearsal"
AGAIN = "run the cells again, from Configure on"
SENT = "sagemaker.CreateTrainingJob"  # botocore's name of the event
HOSTS = 2  # of a rehearsal in the notebook, at most


class Launch:
    """A job on its way from job.toml to SageMaker.

    Attributes:
        project: the notebook's.
        job: job.toml, with the changes of this run.
        name: of the training job; it is sent once.
    """

    def __init__(self, *, accept: Collection[str] = (), **changes: Any) -> None:
        """Read job.toml.

        Args:
            accept: keys of errors that do not apply, as preflight prints them; "rehearsal" sends
                the job without one.
            changes: values of this run, by the keys of job.toml; a table keeps its other entries.

        Raises:
            UserError: a value is not valid.
        """
        show_mistakes_in_a_sentence()
        estimator.silence_sdk()
        sys.modules.pop("options", None)  # the kernel may hold an older src/options.py
        self.project = projects.find(Path.cwd())
        self._read = self._files()
        self._changed = dict(leaves(changes))
        self._accept = (accept,) if isinstance(accept, str) else tuple(accept)
        table = load(self.project.job_file, self.project).model_dump(exclude_unset=True)
        self.job = from_table(request.merge(table, changes), self.project)
        self.name = request.job_name(self.job)
        self._passed: dict[str, str] = {}  # check → fingerprint of the job that passed it
        aws.use_profile(self.job.profile)

    def __repr__(self) -> str:
        """The values, a line for each; empty tables and lists are left out."""
        lines = []
        for key, value in leaves(self.job.model_dump(exclude_unset=True)):
            if value not in ({}, []):
                note = "  # of this run" if key in self._changed else ""
                lines.append(f"{key:<23} {value!r}{note}")
        return "\n".join(lines)

    def preflight(self) -> None:
        """Print what preflight finds, the job, and its price.

        Raises:
            UserError: there is an error among the findings.
        """
        checked = self._fingerprint()
        self._passed.pop(PREFLIGHT, None)
        accepted = [key for key in self._accept if key != REHEARSAL]
        results = preflight.run(self.job, self.project, accept=accepted)
        print(*results, preflight.summary(self.job, self.project), sep="\n")
        print(price.cost(self.job))
        if findings.has_errors(results):
            hint = f'correct them, or Launch(accept=["KEY"]) for one that does not apply; {AGAIN}'
            raise UserError("preflight found errors", hint)
        print(preflight.verdict(results))
        self._passed[PREFLIGHT] = checked

    def rehearse(self, *options: str) -> None:
        """Simulate the job here, on at most two hosts; its lines are printed as they come.

        Args:
            options: further ones of `smlightning rehearse`, as in
                ``rehearse("--channel", "training=FOLDER")``.

        Raises:
            UserError: a check failed, or the rehearsal cannot run here.
        """
        checked = self._fingerprint()
        self._passed.pop(REHEARSAL, None)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "job.json")
            file.write_text(self.job.model_dump_json(exclude_unset=True), encoding="utf-8")
            hosts = str(min(self.job.instance_count, HOSTS))
            command = ["rehearse", "--hosts", hosts, "--job", str(file), *options]
            status = run_and_print(command, self.project.root)
        if status:
            hint = 'correct the problem above; if it cannot run here, Launch(accept=["rehearsal"])'
            if self.job.channels and not options:
                name = next(iter(self.job.channels))
                hint = f'pass each channel a folder, launch.rehearse("--channel", "{name}=DIR")'
            raise UserError(f"the rehearsal failed (exit status {status})", f"{hint}; {AGAIN}")
        self._passed[REHEARSAL] = checked

    def resolve(self) -> SimpleNamespace:
        """Ask AWS for the role and the bucket, and look up what is `auto`."""
        return estimator.resolve(self.job, self.request())

    def request(self) -> dict[str, Any]:
        """CreateTrainingJob, as it was checked."""
        return request.training_request(self.job, self.project, self._destination, self.name)

    @property
    def inputs(self) -> dict[str, Any] | None:
        """The channels of job.toml, for `fit`."""
        return estimator.inputs(self.job)

    @cached_property
    def session(self) -> Any:
        """The SDK's session. It sends the job that passed, once, and no other one."""
        session = estimator.session(self.job)
        events = session.sagemaker_client.meta.events
        events.register(f"before-parameter-build.{SENT}", self._before_sending)
        events.register(f"after-call.{SENT}", self._after_sending)
        return session

    def may_send(self) -> bool:
        """Whether to send the job; it prints the price, and asks if the same job was sent before.

        Without an answer nothing is sent.

        Raises:
            UserError: preflight or rehearsal has not passed for this job and this code.
        """
        checked = self._check()
        if self.name in sent_jobs.remembered(self.project):
            print(f"sent    {self.name} already; for another job, {AGAIN}")
            return False
        print(price.cost(self.job))
        before = sent_jobs.same(self.project, checked)
        if before and not agreed(f"the same job was sent as {before}; send it again? [y/N] "):
            print(f"nothing was sent: the same job was sent as {before}")
            return False
        sending.ensure_bucket(self.job, self._destination)
        return True

    def follow(self, name: str = "") -> Any:
        """Follow a job until its end, and return its curves; None if its log has no metrics.

        Args:
            name: of the training job; by default the last one that was sent from here.
        """
        name, region = self._sent(name)
        outcome = follow.follow(name, region, self.project.options().metrics)
        if not any("step" in row for row in outcome.rows):
            return None
        from IPython.display import Image

        return Image(outcome.curves(self.project.root / "outputs" / "launch"))

    def why(self, name: str = "") -> None:
        """Print how a job ended; of a failed one, which rank failed first, with its last lines."""
        follow.why(*self._sent(name))

    def fetch(self, name: str = "") -> Path:
        """Download a job's model, once; its folder."""
        name, region = self._sent(name)
        folder = self.project.root / "models" / name
        return folder if folder.exists() else fetch.fetch(name, region, folder)

    @cached_property
    def _destination(self) -> Destination:
        return sending.account_destination(self.job, create=False)

    def _files(self) -> list[bytes]:
        """The content of the files that the kernel reads once, in Configure."""
        files = (self.project.job_file, self.project.src / "options.py")
        return [file.read_bytes() for file in files if file.is_file()]

    def _fingerprint(self) -> str:
        """The fingerprint of the job and the code as they are now.

        Raises:
            UserError: a file has changed that Configure has read.
        """
        if self._files() != self._read:
            raise UserError("job.toml or src/options.py has changed since it was read", AGAIN)
        return sending.fingerprint(self.job, self.project)

    def _check(self) -> str:
        """The job's fingerprint; raises UserError unless the job, with this code, passed all."""
        current = self._fingerprint()
        for check in (PREFLIGHT, REHEARSAL):
            if check not in self._accept and self._passed.get(check) != current:
                raise UserError(f"{check} has not passed for this job and code", "run its cell")
        return current

    def _before_sending(self, params: dict[str, Any], **_: Any) -> None:
        """Called by botocore with the request that the estimator sends."""
        checked, sent = dict(leaves(self.request())), dict(leaves(params))
        different = [key for key in {**checked, **sent} if checked.get(key) != sent.get(key)]
        if different:
            key = different[0]
            found = f"{key} is {sent.get(key)!r} in the estimator, and was checked as"
            hint = f"change it in job.toml, or by Launch(KEY=…), and {AGAIN}"
            raise UserError(f"{found} {checked.get(key)!r}", hint)
        self._check()

    def _after_sending(self, http_response: Any, **_: Any) -> None:
        """Called by botocore with AWS's answer."""
        if http_response.status_code < 300:
            job = self.job
            code = sending.fingerprint(job, self.project)
            sent_jobs.remember(self.project, self.name, job.region, code, job.profile)
            print(f"sent    {self.name}: {follow.url(job.region)}/{self.name}")

    def _sent(self, name: str) -> tuple[str, str]:
        """Name and region of a job that was sent; by default the last one from this project."""
        sent = sent_jobs.remembered(self.project)
        if not name and not sent:
            hint = 'send one, or pass the name of a job, as in launch.follow("JOB")'
            raise UserError("no job was sent from this project", hint)
        name = name or list(sent)[-1]
        return name, sent.get(name, self.job.region)


def agreed(question: str) -> bool:
    """Whether the user answers yes; a kernel without a user does not."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (EOFError, RuntimeError):  # RuntimeError: IPython's StdinNotImplementedError
        return False


def run_and_print(command: list[str], folder: Path) -> int:
    """Run a command of the tools, and print its lines as they come; its exit status."""
    # FORCE_COLOR is the kernel's, for programs that it shows on a terminal.
    plain = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    argv = [sys.executable, "-u", "-m", "smlightning_sagemaker", *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    pipes |= {"encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(argv, cwd=folder, env=plain, **pipes) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.terminate()  # it ends its own processes
            raise
    return process.returncode


def show_mistakes_in_a_sentence() -> None:
    """Let a cell fail with one sentence, not a stack trace, for the user's and AWS's errors."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell:
        shell.set_custom_exc((UserError, KeyboardInterrupt, *aws.failures()), print_mistake)


def print_mistake(shell: Any, kind: type, failure: Any, *_: Any, **__: Any) -> None:
    """IPython's handler of these errors. The SDK replaces what shows other errors' traces."""
    known = isinstance(failure, UserError | KeyboardInterrupt)
    lines = findings.error_lines(failure if known else aws.explain(failure))
    print(*lines or ["interrupted"], sep="\n", file=sys.stderr)
