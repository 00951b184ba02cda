"""A small job, its plan, and what an attempt leaves, for tests of the rehearsal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smlightning_sagemaker import project
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.rehearsal.command import parser
from smlightning_sagemaker.rehearsal.evidence import Attempt, Rank
from smlightning_sagemaker.rehearsal.hosts import Host
from smlightning_sagemaker.rehearsal.plan import Plan, make_plan

ROOT = project.find().root
JOB = """\
name = "x"
region = "eu-west-1"
instance_type = "ml.g5.xlarge"
instance_count = 1
"""


def small_request(hosts: int, distribution: str, **keys: Any) -> dict[str, Any]:
    """The request of a small job, with other keys of job.toml."""
    options = {"epochs": 1, "dataset": "cldr", "lr": 2e-3}
    job = {
        "name": "test",
        "region": "us-east-1",
        "instance_type": "ml.p4d.24xlarge",
        "instance_count": hosts,
        "distribution": distribution,
        "hyperparameters": options,
    }
    return request.dry_run(Job(**{**job, **keys}), project.find())


def small_plan(
    hosts: int, processes: int, distribution: str = "torch_distributed", **more: Any
) -> Plan:
    """A plan of the project's own src/."""
    facts = {"source": ROOT / "src", **more}
    if "request" not in facts:
        facts["request"] = small_request(hosts, distribution)
    return Plan(hosts, processes, distribution, **facts)


def planned(folder: Path, *argv: str, job: str = JOB) -> Plan:
    """The plan of a command line, with a job.toml of this text in a folder."""
    path = folder / "job.toml"
    path.write_text(job)
    return make_plan(parser().parse_args(["--job", str(path), *argv]), project.find())


def stranger(folder: Path) -> Path:
    """A folder with a train.py that is not the project's."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("")
    return folder


def script(path: Path, text: str) -> str:
    """A program of shell commands; its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# Two hosts of two ranks, as they should be.
GOOD = tuple(
    Rank(
        rank=number,
        host=number // 2,
        local_rank=number % 2,
        node_rank=number // 2,
        world_size=4,
        weights="abc",
        metrics={"test/accuracy": 0.5},
        prepare_data=["Data.prepare_data in fit"] if number % 2 == 0 else [],
        files=["model/config.json", "checkpoints/1.ckpt"] if number == 0 else [],
        main_address="127.0.0.2",
        steps=10,
        batches=[(f"batch {number} {i}", 8) for i in range(4)],
        samples=[f"sample {number} {i}" for i in range(32)],
        lightning=True,
    )
    for number in range(4)
)


def good_ranks(changes: dict[int, dict[str, Any]]) -> list[Rank]:
    """GOOD, with other facts of some ranks by number, in order."""
    ranks = [replace(rank, **changes.get(rank.rank, {})) for rank in GOOD]
    return sorted(ranks, key=lambda rank: (rank.rank, rank.host))


def ended_hosts(folder: Path, outputs: Sequence[tuple[str, str]]) -> list[Host]:
    """Hosts that have ended; each with a file in output/ of this name and text."""
    hosts = []
    for index, (name, text) in enumerate(outputs):
        host = Host(index, f"127.0.0.{index + 2}", folder / f"host-{index + 1}")
        host.exit_code = int(name == "failure")
        (host.base / "output").mkdir(parents=True)
        (host.base / "output" / name).write_text(text)
        hosts.append(host)
    return hosts


def succeeded(folder: Path, ranks: Sequence[Rank] = GOOD) -> Attempt:
    """An attempt of two hosts that succeeded, and saved a checkpoint and a model on the first."""
    hosts = ended_hosts(folder, [("success", "")] * 2)
    for name in ("model", "checkpoints"):
        (hosts[0].base / name).mkdir()
        (hosts[0].base / name / "file").touch()
    return Attempt(folder, hosts, ranks)
