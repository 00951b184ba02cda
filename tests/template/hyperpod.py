"""A stand-in for HyperPod's training operator, and pods of this machine with AWS's real agent.

The operator exists on AWS only. The stand-in sends the requests of hyperpod-elastic-agent 1.1.3
(server/server.py) in the order of its documents (doc/job_agent_seq_diagram.wsd): it starts training
only if each agent is ready, stops the other agents after a fault, and ends all that are complete.
It rejects changes of state that doc/state_machine_hyperpod_job_agent.mmd does not have. When the
real operator changes the number of pods is not known here: the caller decides.
"""

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from projects import wait_until
from smlightning_sagemaker.testing.processes import free_port

SECONDS = 300  # for the end of an agent, on a busy machine
AGENTS_CHANGES = {"running": ("completed", "faulted"), "stopping": ("ready",)}  # without a request


class JobFailed(Exception):
    """Training failed, or an agent is not in the state that the protocol expects."""


@dataclass
class Pod:
    """hyperpodrun and its workers, on an address of this machine."""

    address: str
    port: int
    process: "subprocess.Popen[bytes]"
    log: Path
    state: str = ""  # that the operator knows of

    def printed(self, text: str) -> bool:
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def request(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Send a GET, or with a body a POST, and return the agent's answer."""
        request = urllib.request.Request(
            f"http://{self.address}:{self.port}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return answer.read()

    def is_up(self) -> bool:
        """Whether the agent answers."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            self.state = json.loads(self.request("status"))["status"]
        except OSError:
            return False
        return True

    def has(self, expected: str) -> bool:
        """Whether the agent is in this state.

        Raises:
            JobFailed: training failed, or the agent changed its state without a request.
        """
        status = json.loads(self.request("status"))
        known, self.state = self.state, status["status"]
        if self.state not in (known, *AGENTS_CHANGES.get(known, ())):
            raise JobFailed(f"{self.address} went from {known} to {self.state}")
        if self.state == "faulted":
            raise JobFailed(f"{self.address}: {status['message']}")
        return self.state == expected

    def end(self) -> None:
        """Kill every process of the pod at once, as if its host failed."""
        if self.process.poll() is not None:
            return
        agent = psutil.Process(self.process.pid)
        for process in [agent, *agent.children(recursive=True)]:
            process.kill()
        self.process.wait()


@dataclass
class Operator:
    """Runs one job.

    Attributes:
        command: hyperpodrun with its options and the script that it starts.
        code: the folder of the script.
        variables: of every pod.
        folder: for logs.
    """

    command: Sequence[str | Path]
    code: Path
    variables: dict[str, str]
    folder: Path
    pods: list[Pod] = field(default_factory=list)
    faults: int = 0
    main_port: int = field(default_factory=free_port)

    def add_pod(self, address: str) -> Pod:
        """Start an agent; it is ready when this returns."""
        port = free_port()
        folder = self.folder / f"{address}:{port}"
        folder.mkdir(parents=True)
        log = folder / "log"
        options = [f"--server-host={address}", f"--server-port={port}"]
        options.append(f"--rdzv-conf=resource_config_dir={folder}")  # of /opt/ml in a container
        program, *rest = self.command
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *options, *rest],
                cwd=self.code,
                env=self.variables,
                stdout=output,
                stderr=output,
            )
        pod = Pod(address, port, process, log)
        self.pods.append(pod)
        wait_until(pod.is_up)
        assert pod.has("ready")
        return pod

    def start(self, *pods: Pod) -> None:
        """Start training on these pods; the first one has rank 0."""
        for pod in pods:
            if not pod.has("ready"):
                raise JobFailed(f"{pod.address} is {pod.state}; a start needs it ready")
        for rank, pod in enumerate(pods):
            place = {"rank": rank, "nnodes": len(pods), "faultCount": self.faults}
            meeting = {"master_addr": pods[0].address, "master_port": str(self.main_port)}
            pod.request("start", place | meeting)
            pod.state = "running"

    def stop(self, pod: Pod, graceful: bool = False) -> None:
        """Stop a pod's workers; graceful: by SIGUSR1, with a minute to save a checkpoint."""
        pod.request("stop", {"is_graceful": True, "timeout": 60} if graceful else {})
        pod.state = "stopping"
        wait_until(lambda: pod.has("ready"))

    def lose(self, pod: Pod, *others: Pod) -> None:
        """Lose a pod, and stop the others."""
        pod.end()
        self.pods.remove(pod)
        self.faults += 1
        for other in others:
            self.stop(other)

    def complete(self, *pods: Pod) -> None:
        """Wait for the end of training, and end the pods; raises JobFailed if training fails."""
        wait_until(lambda: all([pod.has("completed") for pod in pods]))
        for pod in pods:
            pod.request("shutdown", {})
            assert pod.process.wait(SECONDS) == 0
            self.pods.remove(pod)

    def delete(self) -> None:
        """End what is left."""
        for pod in self.pods:
            pod.end()
