"""Hosts on loopback addresses: the folders and files that SageMaker gives each of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smlightning import options, tensors
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.rehearsal.plan import Plan

STUBS = Path(__file__).parent / "stubs"
TENSORS = Path(tensors.__file__)
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
INSTANCE_GROUP = "homogeneousCluster"  # SageMaker's name of the hosts of a job without groups
# Below /opt/ml, which each host has for itself.
FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints", "home")
# The toolkit would install the first here; runs and tools leave the others in src/.
NOT_COPIED = ("requirements.txt", "outputs", "prepared")


@dataclass
class Host:
    """One host, and how it ended."""

    index: int
    address: str
    base: Path  # in place of /opt/ml
    command: list[str] = field(default_factory=list)
    process: "subprocess.Popen[str] | None" = None
    exit_code: int | None = None
    ended_at: float = 0.0  # seconds of time.time(), as interrupted_at
    overdue: bool = False  # ended because its time was over
    interrupted_at: float = 0.0  # when it was stopped or killed as planned; 0: never

    @property
    def number(self) -> int:
        """The host as people count: from 1."""
        return self.index + 1

    def output(self, name: str) -> str | None:
        """Text of ``output/success`` or ``output/failure``; None if it does not exist."""
        path = self.base / "output" / name
        return path.read_text(errors="replace") if path.is_file() else None


def create_hosts(plan: Plan, run: Path, restored: Path | None = None) -> list[Host]:
    """The hosts of one attempt in the folder ``run``, before training.

    Each host has its own copy of a channel, or links to the files if it is read-only.

    Args:
        plan: its channels are on this file system.
        restored: checkpoints of an earlier attempt, which SageMaker puts on every host.
    """
    # Several hosts leave 127.0.0.1 free: a script that has this address in its code then fails.
    first = 1 if plan.hosts == 1 else 2
    hosts = [Host(i, f"127.0.0.{i + first}", run / f"host-{i + 1}") for i in range(plan.hosts)]
    addresses = [host.address for host in hosts]
    for host in hosts:
        for name in FOLDERS:
            (host.base / name).mkdir(parents=True)
        if restored:
            shutil.copytree(restored, host.base / "checkpoints", dirs_exist_ok=True)
        source_archive.copy(plan.source, host.base / "code", NOT_COPIED)
        for channel, folder in plan.channels.items():
            copy = os.link if is_read_only(plan, channel) else shutil.copy2
            shutil.copytree(folder, host.base / "input/data" / channel, copy_function=copy)
        write_configuration(plan, host, addresses)
    for name in ("evidence", "tmp", "cache"):
        (run / name).mkdir()
    copy_stubs(plan, run / "stubs")
    return hosts


def with_copied_channels(plan: Plan, into: Path) -> Plan:
    """The plan with a copy of each channel, so that a script never writes into your folder.

    A copy that an earlier attempt could change is made again.
    """
    copies = {name: into / name for name in plan.channels}
    for name, copy in copies.items():
        if copy.exists() and is_read_only(plan, name):
            continue
        for changed, *_ in os.walk(copy):
            Path(changed).chmod(0o700)  # else rmtree cannot remove its files
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(plan.channels[name], copy, ignore_dangling_symlinks=True)
    return replace(plan, channels=copies)


def copy_stubs(plan: Plan, into: Path) -> None:
    """Copy the stubs of what the job's image holds: SMDDP only for its own distribution.

    Any script is observed, also without this package: a module of it is copied, too.
    """
    absent = [] if plan.distribution == "smddp" else ["smddprun", "smdistributed"]
    shutil.copytree(STUBS, into, ignore=shutil.ignore_patterns("__pycache__", *absent))
    shutil.copy(TENSORS, into / "rehearsal_tensors.py")
    (into / "hidden.json").write_text(json.dumps([plan.hidden_modules, plan.hidden_packages]))


def write_configuration(plan: Plan, host: Host, addresses: list[str]) -> None:
    """Write hyperparameters, resources and channels as SageMaker's ``input/config``."""
    content = {
        "hyperparameters": hyperparameters(plan, host),
        "resourceconfig": resources(plan, host, addresses),
        "inputdataconfig": input_data(plan),
    }
    for name, facts in content.items():
        (host.base / "input/config" / f"{name}.json").write_text(json.dumps(facts))


def hyperparameters(plan: Plan, host: Host) -> dict[str, str]:
    """The request's, with the code in a local folder in place of S3."""
    given = {name: json.loads(text) for name, text in plan.request["HyperParameters"].items()}
    texts = {name: options.decode(text) for name, text in given.items() if isinstance(text, str)}
    for name, text in with_local_channels(plan, texts).items():
        if text != texts[name]:
            given[name] = options.encode(text)
    given["sagemaker_submit_directory"] = str(host.base / "code")
    return {name: json.dumps(value) for name, value in given.items()}


def resources(plan: Plan, host: Host, addresses: list[str]) -> dict[str, Any]:
    """resourceconfig.json, with loopback addresses in place of ``algo-1``, ``algo-2``, …"""
    group = {
        "instance_group_name": INSTANCE_GROUP,
        "instance_type": plan.instance_type,
        "hosts": addresses,
    }
    return {
        "current_host": host.address,
        "hosts": addresses,
        "network_interface_name": LOOPBACK,
        "current_instance_type": plan.instance_type,
        "current_group_name": INSTANCE_GROUP,
        "instance_groups": [group],
    }


def input_data(plan: Plan) -> dict[str, dict[str, str]]:
    """inputdataconfig.json: each channel with the request's input mode."""
    copied = {"S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    return {
        name: {"TrainingInputMode": requested(plan, name).get("InputMode", "File"), **copied}
        for name in plan.channels
    }


def requested(plan: Plan, name: str) -> dict[str, Any]:
    """The request's channel of this name; empty if there is none."""
    for channel in plan.request.get("InputDataConfig", []):
        if channel["ChannelName"] == name:
            return dict(channel)
    return {}


def read_only(plan: Plan, host: Host) -> list[str]:
    """Folders of the read-only channels: the host's, and those that its options name."""
    folders = []
    for name, copy in plan.channels.items():
        if is_read_only(plan, name):
            folders += [str(host.base / "input/data" / name), str(copy.resolve())]
    return folders


def changed_channels(plan: Plan, host: Host) -> list[str]:
    """Read-only channels in which the host has written: programs other than Python can."""
    return [
        name
        for name, copy in plan.channels.items()
        if is_read_only(plan, name)
        and _written(host.base / "input/data" / name, host)
        != dict.fromkeys(_written(copy, host), False)
    ]


def _written(folder: Path, host: Host) -> dict[str, bool]:
    """Whether each file below a folder was written since the host was made."""
    began = (host.base / "input/config/resourceconfig.json").stat().st_mtime
    return {
        path.relative_to(folder).as_posix(): began < path.stat().st_mtime <= time.time()
        for path in folder.rglob("*")
        if path.is_file()
    }


def is_read_only(plan: Plan, name: str) -> bool:
    """Whether SageMaker mounts the channel read-only: FastFile, or a file system as "ro"."""
    channel = requested(plan, name)
    file_system = channel.get("DataSource", {}).get("FileSystemDataSource", {})
    mode = file_system.get("FileSystemAccessMode")
    return bool(channel.get("InputMode") == "FastFile" or mode == "ro")


def with_local_channels(plan: Plan, values: Mapping[str, str]) -> dict[str, str]:
    """The values, with each channel's local folder in place of the container's.

    A resuming run compares options, so they are equal on every host and after a restart: not a
    path in /opt/ml, which lies elsewhere for each host.
    """
    local = dict(values)
    for name, folder in plan.channels.items():
        place = re.compile(rf"(?<![\w/])/opt/ml/input/data/{re.escape(name)}(?![\w.-])")
        literal = str(folder.resolve()).replace("\\", r"\\")  # of a pattern's replacement
        local = {key: place.sub(literal, value) for key, value in local.items()}
    return local
