"""The rehearsal's parts: SageMaker's files as the SDK's request has them, and verdicts that can fail."""

import copy
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from launch import ROOT, job, profiles, request
from rehearsal import __main__ as entry
from rehearsal import checks, hosts, image, requirements
from rehearsal import request as own
from rehearsal.hosts import Host, Plan
from runtime.report import UserError

JOB = job.Job("test", "us-east-1", "ml.p4d.24xlarge", 2, hyperparameters={"epochs": 1, "dataset": "cldr", "lr": 2e-3})


def plan(count: int, processes: int, distribution: str = "none", source: Path = ROOT / "src", **more: Any) -> Plan:
    made = own.without_sdk(dataclasses.replace(JOB, distribution=distribution))
    return Plan(count, processes, distribution, source, made, **more)


def parsed(folder: Path, *argv: str) -> Plan:
    """The plan of a command line, with a small job.toml."""
    path = folder / "job.toml"
    path.write_text('name = "x"\nregion = "eu-west-1"\ninstance_type = "ml.g5.xlarge"\ninstance_count = 1\n')
    return entry.plan(entry.parse(["--job", str(path), *argv]))


@pytest.mark.parametrize("distribution", [each for each in job.DISTRIBUTIONS if each != "auto"])
def test_without_the_sdk_the_request_has_the_same_hyperparameters(distribution: str) -> None:
    asked = dataclasses.replace(JOB, distribution=distribution, instance_count=1 if distribution == "none" else 2)
    wanted, found = (made["HyperParameters"] for made in (request.dry_run(asked), own.without_sdk(asked)))
    elsewhere = {"sagemaker_submit_directory", "sagemaker_job_name"}  # with a time; the rehearsal's folder
    assert elsewhere <= {*wanted, "sagemaker_submit_directory"}
    assert {k: v for k, v in found.items() if k not in elsewhere} == {
        k: v for k, v in wanted.items() if k not in elsewhere
    }


def test_the_request_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hyperparameters as they are encoded, instance, environment, input modes and entry point."""
    made = {
        "HyperParameters": {"epochs": "7", "text": '"a b"', "sagemaker_region": '"eu-west-1"'},
        "Environment": {"NCCL_DEBUG": "INFO"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge"},
        "AlgorithmSpecification": {"ContainerEntrypoint": ["bash", "-c", "cd /proc/self; echo $NCCL_DEBUG; ls"]},
        "InputDataConfig": [{"ChannelName": "training", "InputMode": "FastFile"}],
    }
    monkeypatch.setattr(request, "dry_run", lambda asked: made)
    found = parsed(tmp_path, "--channel", f"training={tmp_path}")
    [host] = hosts.create_hosts(found, tmp_path / "run")
    written = {p.stem: json.loads(p.read_text()) for p in (host.base / "input/config").iterdir()}
    code = {"sagemaker_submit_directory": json.dumps(str(host.base / "code"))}
    assert written["hyperparameters"] == {**made["HyperParameters"], **code}
    assert written["resourceconfig"]["current_instance_type"] == "ml.g5.xlarge"
    assert written["inputdataconfig"]["training"]["TrainingInputMode"] == "FastFile"
    (host.base / "processes/self").mkdir(parents=True)
    (host.base / "processes/self/of this host").touch()
    said = [line for _, line in hosts.run_hosts(found, tmp_path / "run", [host], 7777, False) if line]
    assert said == ["INFO", "of this host"] and host.exit_code == 0


def test_layout_is_sagemakers(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    created = hosts.create_hosts(plan(3, 2, "smddp", channels={"training": data}), tmp_path)
    resources = [json.loads((host.base / "input/config/resourceconfig.json").read_text()) for host in created]
    assert [r["current_host"] for r in resources] == resources[0]["hosts"] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    for host in created:
        assert (host.base / "code/train.py").is_file() and not (host.base / "code/requirements.txt").exists()
        assert (host.base / "input/data/training").resolve() == data.resolve()
        assert all((host.base / name).is_dir() for name in ("model", "output/data", "checkpoints"))


def test_an_option_or_variable_with_a_channels_folder_is_given_the_local_one(tmp_path: Path) -> None:
    """On every host, and after a restart, the same: options are compared."""
    data = tmp_path / 'a"b'
    data.mkdir()
    asked = plan(2, 1, channels={"training": data, "training2": tmp_path})
    place = "/opt/ml/input/data/training"
    wanted = {place: f"{data}", f"{place}/b": f"{data}/b", f"{place}2/a.csv": f"{tmp_path}/a.csv", "/opt/ml/model": ""}
    asked.request["HyperParameters"] |= {path: json.dumps(path) for path in wanted}
    asked.request["HyperParameters"]["list"] = json.dumps(json.dumps([f"{place}2"]))
    asked.request["Environment"] = {"WORDS": f"{place}/b", "PLACES": f"{place}:{place}2/a:{place}-3"}
    for host in hosts.create_hosts(asked, tmp_path / "run"):
        variables = hosts.environment(asked, tmp_path / "run", host, 7777, mpirun=False)
        assert variables["WORDS"] == f"{data}/b" and variables["PLACES"] == f"{data}:{tmp_path}/a:{place}-3"
        given = json.loads((host.base / "input/config/hyperparameters.json").read_text())
        assert {path: json.loads(given[path]) for path in wanted} == {path: to or path for path, to in wanted.items()}
        assert json.loads(json.loads(given["list"])) == [str(tmp_path)]


def test_a_channel_that_the_job_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('name = "x"\nregion = "eu-west-1"\ninstance_type = "ml.g5.xlarge"\ninstance_count = 1\n')
    path.write_text(path.read_text() + '[channels]\ntraining = "s3://bucket/data/"\n')
    with pytest.raises(UserError, match=r"--channel trainning is not among \[channels\] .* did you mean training"):
        entry.plan(entry.parse(["--job", str(path), "--channel", f"trainning={tmp_path}"]))


def test_environment_is_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this shell but what Python and the network need, unless it is let in by name."""
    for name in ("RANK", "SM_HOSTS", "PYTHONPATH", "MASTER_PORT", "HF_TOKEN", "HF_HOME", "FORCE_COLOR", "https_proxy"):
        monkeypatch.setenv(name, "of this shell")
    asked = plan(2, 2, "torch_distributed")
    host = hosts.create_hosts(asked, tmp_path)[1]
    found = hosts.environment(asked, tmp_path, host, 7777, mpirun=False)
    assert {name for name, value in found.items() if value == "of this shell"} == {"https_proxy"}
    assert found["PYTHONPATH"] == str(tmp_path / "stubs") and found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["HOME"] == str(host.base / "home") and not list((host.base / "home").iterdir())
    assert found["SAGEMAKER_TRAINING_MODULE"] == "sagemaker_pytorch_container.training:main"  # AWS's own
    assert not (tmp_path / "stubs/smdistributed").exists() and not (tmp_path / "stubs/bin/smddprun").exists()
    asked = dataclasses.replace(asked, inherit=["HF_TOKEN", "HOME"])
    found = hosts.environment(asked, tmp_path, host, 7777, mpirun=False)
    assert found["HF_TOKEN"] == "of this shell" and found["HOME"] == str(Path.home())  # noqa: S105
    path = tmp_path / "job.toml"
    parsed(tmp_path)
    path.write_text(path.read_text() + 'hub_token_secret = "hub"\n')
    told = entry.plan(entry.parse(["--job", str(path)]))
    assert "HUB_TOKEN_SECRET" not in told.request.get("Environment", {}) and "--inherit HF_TOKEN" in told.notes[0]
    with pytest.raises(UserError, match="--inherit NO_SUCH: this shell has no such variable"):
        parsed(tmp_path, "--inherit", "NO_SUCH")


def test_the_reason_for_going_without_mpirun_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "several hosts" in hosts.without_mpirun(plan(2, 2, "smddp"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hosts.without_mpirun(plan(1, 2, "smddp")) == "unshare is not installed"
    monkeypatch.setattr(hosts, "OPEN_MPI", tmp_path)
    assert f"Open MPI is not installed in {tmp_path}" in hosts.without_mpirun(plan(1, 2, "smddp"))


def test_port_is_never_shared() -> None:
    with hosts.port() as one, hosts.port() as other:
        assert one != other


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_host_that_never_falls_silent_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    asked = plan(1, 1, "torch_distributed", _stranger(tmp_path / "source"), timeout=1)
    created = hosts.create_hosts(asked, tmp_path / "run")
    monkeypatch.setattr(hosts.sys, "executable", script(tmp_path / "chatter", "while sleep 0.05; do echo said; done"))
    started = time.monotonic()
    said = [line for _, line in hosts.run_hosts(asked, tmp_path / "run", created, 7777, False) if line]
    assert said[0] == "said" and created[0].overdue and time.monotonic() - started < 10


def test_the_toolkits_listing_is_in_the_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    asked = plan(1, 1, "torch_distributed", _stranger(tmp_path / "source"))
    created = hosts.create_hosts(asked, tmp_path / "run")
    listing = ["Training Env:", "{", "SM_HOSTS=[]", "", "Invoking script with the following command:", "it"]
    lines = ["before", "2026-11-22 02:35:39,966 sagemaker-training-toolkit INFO     No Neurons detected", *listing]
    monkeypatch.setattr(hosts.sys, "executable", script(tmp_path / "toolkit", f"echo '{chr(10).join(lines)}'"))
    said = [line for _, line in hosts.run_hosts(asked, tmp_path / "run", created, 7777, False) if line]
    assert said == [lines[0], *lines[-2:]] and (created[0].base / "log.txt").read_text().splitlines() == lines


def test_a_stop_reaches_the_ranks_of_one_host_through_the_forwarding_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launch/profiles.py's own script, on hosts that share /proc: not the launcher, and not the other host."""
    (tmp_path / "source").mkdir()
    rank = "trap 'echo rank told; exit 3' TERM; while sleep 0.1; do :; done"
    script(tmp_path / "train.py", f"touch $REHEARSAL_EVIDENCE/in-training-$REHEARSAL_HOST; {rank}")
    script(tmp_path / "torchrun", f"trap 'echo launcher told' TERM; sh {tmp_path}/train.py & wait $!; wait $!")
    toolkit = script(tmp_path / "toolkit", f"sh {tmp_path}/torchrun train.py")
    made = own.without_sdk(dataclasses.replace(JOB, distribution="torch_distributed", forward_stop=True))
    assert made["AlgorithmSpecification"]["ContainerEntrypoint"] == profiles.FORWARDING
    asked = Plan(2, 1, "torch_distributed", _stranger(tmp_path / "source"), made, fault="stop-host", target=1, grace=5)
    created = hosts.create_hosts(asked, tmp_path / "run")
    monkeypatch.setattr(hosts.sys, "executable", toolkit)
    said = [(host.index, line) for host, line in hosts.run_hosts(asked, tmp_path / "run", created, 7777, False) if line]
    assert (1, "rank told") in said and created[1].exit_code == 3 and not created[1].overdue
    assert (1, "launcher told") not in said and created[0].overdue, "the other host was told nothing before its end"


def test_help_answers_at_once() -> None:
    started = time.perf_counter()
    said = subprocess.run([sys.executable, "-m", "rehearsal", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0 and "--kill-rank" in said.stdout and time.perf_counter() - started < 10


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--source-dir", "/nowhere"], ["/nowhere", "no train.py"]),
        (["--distribution", "none", "--processes", "2"], ["--processes 2", "--processes 1"]),
        (["--hosts", "2", "--processes", "2", "--kill-rank", "4"], ["--kill-rank 4", "0 to 3"]),
        (["--hosts", "2", "--stop-host", "3"], ["--stop-host 3", "1 to 2"]),
        (["--hosts", "0"], ["--hosts 0", "1 to 64"]),
        (["--batches", "-1"], ["--batches -1", "0 to"]),
        (["--timeout", "nan"], ["--timeout nan", "1 to 86400"]),
        (["--stop-host", "1", "--kill-rank", "0"], ["--kill-rank and --stop-host", "mutually exclusive"]),
        (["--channel", "training=/nowhere"], ["training=/nowhere"]),
        (["--channel", "training"], ["--channel training=", "NAME=DIR"]),
        (["--channel", "=/"], ["--channel =/", "NAME=DIR"]),
        (["--job", "/nowhere.toml"], ["/nowhere.toml cannot be read"]),
        (["--json", "/nowhere/report.json"], ["/nowhere/report.json", "cannot be written"]),
        (["--json", "/"], ["--json /", "cannot be written"]),
        (["--keep", "/"], ["--keep /", "exists"]),
        (["--", "epochs", "1"], ["'epochs'", "--name value"]),
        (["--", "--epochs"], ["'--epochs'"]),
        (["--source-dir", "src", "--", "--epoch", "1"], ["epoch: train.py has no such option", "did you mean epochs?"]),
        (["--source-dir", "src", "--", "--lr", "fast"], ["lr: found 'fast'", "expected a finite number above 0"]),
    ],
)
def test_a_mistake_is_one_sentence(
    argv: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    source = [] if "--source-dir" in argv else ["--source-dir", str(_stranger(tmp_path))]
    with pytest.raises(UserError) as error:
        parsed(tmp_path, *source, *argv)
    assert all(word in str(error.value) for word in words)


def _stranger(folder: Path) -> Path:
    (folder / "train.py").write_text("")
    return folder


def test_what_the_toolkit_would_install_is_refused(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(UserError, match="toolkit would install it"):
        parsed(tmp_path, "--source-dir", str(_stranger(tmp_path)))


def test_the_images_versions_run_in_an_environment_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made by pip once; where pip cannot make it, one sentence."""
    path, ran = tmp_path / "job.toml", list[list[str]]()
    path.write_text('name = "x"\nregion = "eu-west-1"\ninstance_type = "ml.g5.xlarge"\ninstance_count = 1\n')
    argv = ["--image-versions", "--job", str(path), "--", "--epochs", "1"]
    monkeypatch.setattr(image.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert entry.main(argv) == 2
    said = r"error: pip cannot make an environment with torch 2\.13\.0 here \(.+\); rehearse without --image-versions\n"
    assert re.fullmatch(said, capsys.readouterr().err)
    home = tmp_path / "image-2.13.0"
    (home / "made").touch()
    monkeypatch.setattr(os, "execv", lambda _, command: ran.append(command) or sys.exit(0))
    with pytest.raises(SystemExit):
        entry.main(argv)
    assert ran == [[str(home / "bin/python"), "-m", "rehearsal", *argv[1:]]]
    path.write_text(path.read_text() + 'image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"\n')
    assert entry.main(argv) == 2 and "the image's torch is not known here" in capsys.readouterr().err


def test_hyperparameters_after_two_dashes() -> None:
    assert entry.pairs(["--epochs", "1", "--lr=1e-3", "--name", "true", "--text", "a b"]) == {
        "epochs": 1,
        "lr": 1e-3,
        "name": True,
        "text": "a b",
    }


def test_a_path_after_two_dashes_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert entry.pairs(["--dataset", "./mine", "--model_name", "org/none"]) == {
        "dataset": str((tmp_path / "mine").resolve()),
        "model_name": "org/none",
    }


GOOD: list[dict[str, Any]] = [
    {
        **{"host": rank // 2, "rank": rank, "local_rank": rank % 2, "node_rank": rank // 2, "world_size": 4},
        **{"weights": "abc", "metrics": {"test/accuracy": 0.5}},
        "prepare_data": ["Data.prepare_data in fit"] if rank % 2 == 0 else [],
        "files": ["model/config.json"] if rank == 0 else [],
        "batches": [[f"batch {rank} {i}", 8] for i in range(4)],
        "samples": [f"sample {rank} {i}" for i in range(32)],
    }
    for rank in range(4)
]
ALL = ["Data.prepare_data in fit", "Model.prepare_data in fit for all nodes"]
FAULTS: dict[str, tuple[str, Any]] = {
    "world-size": ("a rank alone", lambda ranks: ranks[1].update(world_size=1)),
    "ranks-complete": ("a rank twice", lambda ranks: ranks[1].update(rank=0)),
    "node-ranks": ("node rank 0 everywhere", lambda ranks: [rank.update(node_rank=0) for rank in ranks]),
    "prepare-data-once-per-node": ("on every rank", lambda ranks: ranks[3].update(prepare_data=["x in fit"])),
    "prepare-data-once-per-node ": ("not on node 1", lambda ranks: ranks[2].update(prepare_data=[])),
    "prepare-data-once-per-node  ": ("for all nodes on node 1", lambda ranks: ranks[2].update(prepare_data=ALL)),
    "data-divided": ("a batch twice", lambda ranks: ranks[2]["batches"].append(ranks[1]["batches"][3])),
    "data-divided ": ("samples twice", lambda ranks: ranks[3].update(samples=ranks[0]["samples"][::-1])),
    "weights-identical": ("another model", lambda ranks: ranks[2].update(weights="abd")),
    "metrics-identical": ("a rank's own", lambda ranks: ranks[2].update(metrics={"test/accuracy": 0.4})),
    "metrics-identical ": ("one more", lambda ranks: ranks[2]["metrics"].update(more=1.0)),
    "one-writer": ("everybody writes", lambda ranks: ranks[2].update(files=["model/config.json"])),
    "hosts-succeeded": ("a failure", lambda ranks: None),
    "success-or-failure-file": ("a failure", lambda ranks: None),
}


def ended(folder: Path, **files: str | None) -> list[Host]:
    """Two hosts that have these files in output/."""
    created = [Host(i, f"127.0.0.{i + 1}", folder / f"{i}", exit_code=int("failure" in files)) for i in range(2)]
    for host in created:
        (host.base / "output").mkdir(parents=True)
        host.exit_code = 0
        for name, text in files.items():
            if text is not None:
                (host.base / "output" / name).write_text(text)
                host.exit_code = int(name == "failure")
    return created


@pytest.mark.parametrize("broken", [None, *FAULTS])
def test_each_check_finds_its_fault(broken: str | None, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    ranks, created = copy.deepcopy(GOOD), ended(tmp_path, success="", failure=None)
    if broken:
        FAULTS[broken][1](ranks)
        if FAULTS[broken][0] == "a failure":
            created[1].exit_code = 1
    ranks.sort(key=lambda rank: rank["rank"])
    verdicts = {c.name: c.verdict for c in checks.judge(plan(2, 2), tmp_path, created, ranks)}
    failed = {name for name, verdict in verdicts.items() if verdict == "failed"}
    assert failed >= {broken.strip()} if broken else not failed


@pytest.mark.parametrize("seen", [0, 2])
def test_after_a_failure_the_cause_is_given_once_and_what_lacks_evidence_is_skipped(seen: int, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    created = ended(tmp_path, failure="rank 1 on host b failed: ValueError: no room\nmore")
    ranks = [{**rank, "weights": None, "metrics": {}, "files": []} for rank in copy.deepcopy(GOOD[:seen])]
    found = {c.name: c for c in checks.judge(plan(2, 2), tmp_path, created, ranks)}
    assert [name for name, check in found.items() if check.verdict == "failed"] == ["hosts-succeeded"]
    assert found["hosts-succeeded"].detail == (
        "host 1: exit 1; host 2: exit 1; rank 1 on host b failed: ValueError: no room"
    )
    assert found["weights-identical"] == checks.Check("weights-identical", "skipped", "the job failed before")
    if seen:  # what contradicts the plan stays a failure
        ranks[1]["node_rank"] = 1
        assert {"node-ranks", "hosts-succeeded"} == {
            c.name for c in checks.judge(plan(2, 2), tmp_path, created, ranks) if c.verdict == "failed"
        }


def test_what_s3_kept_is_restored_on_every_host_and_is_nobodys_writing(tmp_path: Path) -> None:
    first = hosts.create_hosts(plan(2, 1), tmp_path / "first")
    (first[0].base / "checkpoints/of-rank-0").write_text("rank 0")
    kept = hosts.upload(first, tmp_path / "s3")
    asked = plan(2, 1, restored=kept)
    again = hosts.create_hosts(asked, tmp_path / "again")
    assert [(host.base / "checkpoints/of-rank-0").read_text() for host in again] == ["rank 0", "rank 0"]
    ranks = copy.deepcopy(GOOD)
    assert checks._one_writer(asked, again, ranks).verdict == "passed"
    (again[1].base / "checkpoints/of-rank-1").touch()
    assert checks._one_writer(asked, again, ranks).verdict == "failed"


@pytest.mark.parametrize(
    "first_step, weights, failed",
    [
        (7, "abc", set()),
        (0, "abc", {"resumes-from-checkpoint"}),
        (7, "abd", {"weights-as-undisturbed"}),
        (7, None, {"weights-identical", "weights-as-undisturbed"}),
        (None, "abc", {"resumes-from-checkpoint"}),
        (20, "abc", {"resumes-from-checkpoint"}),
    ],
)
def test_a_restart_resumes_and_ends_with_the_same_weights(
    first_step: int | None, weights: str | None, failed: set[str], tmp_path: Path
) -> None:
    again = [{**rank, "first_step": first_step or 0, "weights": weights or str(rank["rank"])} for rank in GOOD]
    if first_step == 20:  # training was over by then
        again = [{**rank, "batches": [], "samples": []} for rank in again]
    (tmp_path / "evidence").mkdir()
    found = checks.judge(plan(2, 2), tmp_path, ended(tmp_path, success=""), again, GOOD)
    assert {check.name for check in found if check.verdict == "failed"} == failed


@pytest.mark.parametrize("fault", ["stop-host", "lose-host"])
@pytest.mark.parametrize(
    "at, codes, verdict, words",
    [
        (2.0, (1, 143), "passed", "host 2 after 10.0 s"),
        (2.0, (0, 143), "failed", "as if nothing had happened"),
        (0.0, (0, 0), "failed", "host 2 never reached step 2"),
    ],
)
def test_an_interrupted_host_ends_the_others(
    fault: str, at: float, codes: tuple[int, int], verdict: str, words: str, tmp_path: Path
) -> None:
    created = [Host(i, "", tmp_path, exit_code=code, ended_at=12.0) for i, code in enumerate(codes)]
    created[1].interrupted_at = at
    [check] = checks.judge(plan(2, 2, fault=fault, target=1), tmp_path, created, [])
    assert (check.name, check.verdict) == ("ends-in-time", verdict) and words in check.detail


def test_rank_0_alone_may_prepare_for_all_nodes() -> None:
    ranks = copy.deepcopy(GOOD)
    ranks[0]["prepare_data"] = ALL
    assert checks._prepare_data(ranks).verdict == "passed"


def test_metrics_that_nobody_logged_are_not_identical() -> None:
    ranks = [{**rank, "metrics": {}} for rank in copy.deepcopy(GOOD)]
    assert checks._same("metrics-identical", ranks, "metrics").verdict == "skipped"


def evidence(*batches: list[list[str]], told: bool = True) -> list[dict[str, Any]]:
    """What the recorder notes of ranks that see these batches, whose samples it can tell apart or not."""
    return [
        {
            "rank": rank,
            "batches": [["+".join(batch), len(batch) * told] for batch in mine],
            "samples": [sample for batch in mine for sample in batch if told],
        }
        for rank, mine in enumerate(batches)
    ]


def sampled(world_size: int, samples: int, batch: int) -> list[dict[str, Any]]:
    """What ranks see through the sampler that Lightning gives an ordinary DataLoader, which repeats some to be even."""
    orders = [[*DistributedSampler(range(samples), world_size, rank)] for rank in range(world_size)]  # type: ignore[arg-type]
    return evidence(*[[[*map(str, o[i : i + batch])] for i in range(0, len(o), batch)] for o in orders])


ABCD, EFGH = [["a", "b"], ["c", "d"]], [["e", "f"], ["g", "h"]]


@pytest.mark.parametrize(
    "ranks, verdict, detail",
    [
        (evidence(ABCD, EFGH), "passed", "0 of 8 samples on more than one rank"),
        (evidence(ABCD, EFGH, told=False), "passed", "0 of 4 batches on more than one rank"),
        (evidence(ABCD, ABCD), "failed", "4 of 4 samples on more than one rank; ranks 0 and 1 both saw 2 of 2 batches"),
        (evidence(ABCD, EFGH, ABCD[1:], told=False), "failed", "ranks 0 and 2 both saw 1 of 1 batches"),
        (evidence(ABCD, [["d", "b"], ["a", "c"]]), "failed", "ranks 0 and 1 both saw 4 of 4 samples"),
        (evidence(ABCD, [["d", "b"], ["g", "h"]]), "passed", "2 of 6 samples on more than one rank"),
        (evidence([["a", "a"]] * 4, [["a", "a"]] * 4), "skipped", "recur"),
        (evidence([], []), "skipped", "no batch was seen"),
        (GOOD[:1], "skipped", "one rank"),
        *((sampled(*sizes), "passed", "on more") for sizes in ((2, 65, 1), (2, 65, 16), (4, 66, 8), (8, 3, 4))),
    ],
)  # fmt: skip
def test_data_is_divided(ranks: list[dict[str, Any]], verdict: str, detail: str) -> None:
    found = checks._data_divided(plan(1, len(ranks)), ranks)
    assert found.verdict == verdict and detail in found.detail


def test_the_recorder_tells_samples_apart_where_it_can() -> None:
    """A tensor of other length than the batch is no column of it; a batch of strings has a digest, and no samples."""
    spec = importlib.util.spec_from_file_location("recorder", hosts.STUBS / "rehearsal_recorder.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def note(*batches: Any, epoch: int = 0) -> tuple[list[Any], list[str]]:
        recorder = SimpleNamespace(seen={"batches": [], "samples": []}, first_epoch=0)
        for batch in batches:
            module.Recorder.on_train_batch_start(recorder, SimpleNamespace(current_epoch=epoch), None, batch, 0)
        return recorder.seen["batches"], recorder.seen["samples"]

    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([1, 0, 1])
    batches, samples = note({"x": x, "y": (y, [torch.zeros(1)])}, {"x": x.flip(0), "y": (y, [torch.zeros(1)])})
    assert [size for _, size in batches] == [3, 3] and batches[0] != batches[1]
    assert len(samples) == 6 and set(samples[:3]) == set(samples[3:]), "the same samples in another batch"
    assert note({"x": x, "scale": 0.5})[0] == note({"x": x.clone(), "scale": 0.5})[0] != note({"x": x, "scale": 1.0})[0]
    batches, samples = note(["one", "other"], ["one", "another"], [torch.eye(2).to_sparse()])
    assert len({digest for digest, _ in batches}) == 3 and [size for _, size in batches] == [0, 0, 0] and not samples
    assert note(x, epoch=1) == ([], [])


@pytest.mark.parametrize("fault", ["kill-rank", "fail-rank"])
def test_the_cause_must_be_in_the_first_1024_characters(fault: str, tmp_path: Path) -> None:
    created = ended(tmp_path, failure="rank 3 on host b failed")
    (created[1].base / "output/failure").write_text("x" * 1024 + "rank 3")
    for host in created:
        host.ended_at = 12.0
    asked = plan(2, 2, "smddp", fault=fault, target=3)
    found = {c.name: c for c in checks.judge(asked, tmp_path, created, [{**GOOD[3], "fault_at": 2.0}])}
    assert found["ends-in-time"].verdict == "passed" and "10.0 s" in found["ends-in-time"].detail
    assert found["failure-names-cause"].verdict == "failed" and "[2]" in found["failure-names-cause"].detail


@pytest.mark.parametrize("known", ["--sample", "--other"])
def test_predict_is_asked_for_the_projects_own_sample(known: str, tmp_path: Path) -> None:
    """A program without `--sample`, or a folder without a program, is no failure."""
    created = ended(tmp_path, success="")
    assert checks._predicts(plan(2, 1), tmp_path, created).detail == "no predict.py in the source folder"
    (created[0].base / "code").mkdir()
    lines = ["import argparse", "p = argparse.ArgumentParser()", "p.add_argument('--model_dir')"]
    lines += [f"p.add_argument('{known}', action='store_true')", "print('answer of', p.parse_args().model_dir)"]
    (created[0].base / "code/predict.py").write_text("\n".join(lines))
    check = checks._predicts(plan(2, 1), tmp_path, created)
    assert check.verdict == ("passed" if known == "--sample" else "skipped"), check.detail
    assert ("answer of" if known == "--sample" else "no option --sample") in check.detail


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", "us-east-1")
        client.create_bucket(Bucket="words")
        yield client


REQUEST = {"HyperParameters": {"sagemaker_region": '"us-east-1"'}}


def test_a_channels_sample_comes_from_all_over_its_listing(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "SAMPLE", 1000)
    monkeypatch.setattr(own, "BEGINNING", 95)
    monkeypatch.setattr(own, "TAKEN", 8)
    s3.put_object(Bucket="words", Key="data/0/0.csv", Body=b"text,label\n" * 50)
    for i in range(32):
        s3.put_object(Bucket="words", Key=f"data/{i // 16}/{i:02} image.bin", Body=b"x" * (2000 if i == 4 else 100))
    s3.put_object(Bucket="words", Key="database/x.csv", Body=b"x")
    said = own.sample("training", "s3://words/data/", REQUEST, tmp_path / "all")
    found = sorted(str(path.relative_to(tmp_path / "all")) for path in (tmp_path / "all").rglob("*.*"))
    assert "0/0.csv" in found and any(name.startswith("1/") for name in found) and 4 < len(found) <= 8
    assert (tmp_path / "all/0/0.csv").read_text() == "text,label\n" * 8 and said.startswith(f"{len(found)} objects")
    own.sample("training", "s3://words/data/0/0.csv", REQUEST, tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["0.csv"]
    s3.put_object(Bucket="words", Key="out/../../outside.csv", Body=b"x")
    with pytest.raises(UserError, match="no data of at most"):
        own.sample("training", "s3://words/out/", REQUEST, tmp_path / "none")
    assert not (tmp_path / "outside.csv").exists()


def test_without_data_of_a_channel_it_is_said_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    import boto3

    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"no AWS credentials here; run aws conf.*, or give a local folder"):
        own.sample("training", "s3://words/data", REQUEST, tmp_path / "x")
    request.getfixturevalue("s3")
    with pytest.raises(UserError, match=r"channel training = s3://none/x cannot be read: .*--channel training=DIR"):
        own.sample("training", "s3://none/x", REQUEST, tmp_path / "x")


@pytest.mark.parametrize(
    "text, image, problem",
    [
        ("pytorch-lightning  # and why\n", "2.13.0", None),
        ("torch==2.13.0\n", "2.13.0", "replaces the image's build"),
        ("torchvision\n", "2.13.0", "replaces the image's build"),
        ("nvidia-nccl-cu12\n", "2.13.0", "replaces the image's build"),
        ("pytorch-lightning\n", "1.9.0", "the image has 1.9.0"),
        ("pytorch-lightning==0.1\n", "2.13.0", "ran here"),
        ("surely-no-such-package\n", "2.13.0", "not installed here"),
        ("--extra-index-url x\n", "2.13.0", "cannot be judged"),
    ],
)
def test_requirements(text: str, image: str, problem: str | None, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    packages, check = requirements.check(path, image)
    assert check.verdict == ("failed" if problem else "passed") and (problem or "torch") in check.detail
    assert not any(package.startswith(("torch==", "nvidia")) for package in packages)


def test_own_requirements_keep_every_images_torch() -> None:
    from launch.profiles import PROFILES

    for profile in PROFILES.values():
        packages, check = requirements.check(ROOT / "src/requirements.txt", profile.torch)
        assert check.verdict == "passed", check.detail
        assert any(package.startswith("pytorch-lightning==") for package in packages)
