"""The rehearsal's own wires: SageMaker's files as the SDK writes them, and verdicts that can fail."""

import copy
import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from launch import ROOT, job, request
from rehearsal import __main__ as entry
from rehearsal import checks, hosts, requirements
from rehearsal.hosts import Host, Plan
from runtime.report import UserError

JOB = job.Job("test", "us-east-1", "ml.p4d.24xlarge", 2, hyperparameters={"epochs": 1, "dataset": "cldr", "lr": 2e-3})


@pytest.mark.parametrize("distribution", hosts.FLAGS)
def test_hyperparameters_are_those_of_the_request(distribution: str, tmp_path: Path) -> None:
    asked = dataclasses.replace(JOB, distribution=distribution, instance_count=1 if distribution == "none" else 2)
    wanted = request.dry_run(asked)["HyperParameters"]
    plan = Plan(asked.instance_count, 1, distribution, ROOT / "src", JOB.hyperparameters)
    host = hosts.lay_out(plan, tmp_path)[-1]
    found = json.loads((host.base / "input/config/hyperparameters.json").read_text())
    own = {"sagemaker_submit_directory", "sagemaker_job_name"}  # here a folder; there a time and an address
    assert {k: v for k, v in found.items() if k not in own} == {k: v for k, v in wanted.items() if k not in own}
    assert own <= set(found) & set(wanted)


def test_layout_is_sagemakers(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    cast = hosts.lay_out(Plan(3, 2, "smddp", ROOT / "src", channels={"training": data}), tmp_path)
    resources = [json.loads((host.base / "input/config/resourceconfig.json").read_text()) for host in cast]
    assert [r["current_host"] for r in resources] == resources[0]["hosts"] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    for host in cast:
        assert (host.base / "code/train.py").is_file() and not (host.base / "code/requirements.txt").exists()
        assert (host.base / "input/data/training").resolve() == data.resolve()
        assert all((host.base / name).is_dir() for name in ("model", "output/data", "checkpoints"))


def test_environment_is_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SM_HOSTS", "PYTHONPATH", "MASTER_PORT"):
        monkeypatch.setenv(name, "of this shell")
    plan = Plan(2, 2, "torch_distributed", ROOT / "src")
    found = hosts.environment(plan, tmp_path, hosts.lay_out(plan, tmp_path)[1], 7777, mpirun=False)
    assert not {"RANK", "SM_HOSTS", "MASTER_PORT"} & set(found)
    assert found["PYTHONPATH"] == str(tmp_path / "modules") and found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["SAGEMAKER_TRAINING_MODULE"] == "sagemaker_pytorch_container.training:main"  # AWS's own
    assert not (tmp_path / "modules/smdistributed").exists() and not (tmp_path / "bin/smddprun").exists()


def test_what_mpirun_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(1, 2, "smddp", ROOT / "src")
    assert "several hosts" in hosts.without_mpirun(dataclasses.replace(plan, hosts=2))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hosts.without_mpirun(plan) == "unshare is not installed"
    monkeypatch.setattr(hosts, "OPEN_MPI", tmp_path)
    assert (
        hosts.without_mpirun(plan)
        == f"Open MPI is not installed in {tmp_path}; make rehearse installs it where there is a wheel for this system"
    )


def test_port_is_never_shared() -> None:
    with hosts.port() as one, hosts.port() as other:
        assert one != other


def test_a_host_that_never_falls_silent_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    plan = Plan(1, 1, "torch_distributed", _stranger(source), timeout=1)
    run = tmp_path / "run"
    cast = hosts.lay_out(plan, run)
    chatter = tmp_path / "chatter"
    chatter.write_text("#!/bin/sh\nwhile sleep 0.05; do echo said; done\n")
    chatter.chmod(0o755)
    monkeypatch.setattr(hosts.sys, "executable", str(chatter))
    started = time.monotonic()
    said = [line for _, line in hosts.play(plan, run, cast, 7777, False) if line]
    assert said[0] == "said" and cast[0].overdue and time.monotonic() - started < 10


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
        (["--stop-host", "1", "--kill-rank", "0"], ["--kill-rank and --stop-host", "one after the other"]),
        (["--channel", "training=/nowhere"], ["training=/nowhere"]),
        (["--channel", "training"], ["--channel training=", "NAME=DIR"]),
        (["--channel", "=/"], ["--channel =/", "NAME=DIR"]),
        (["--job", "/nowhere.toml"], ["/nowhere.toml cannot be read"]),
        (["--json", "/nowhere/report.json"], ["/nowhere/report.json", "cannot be written"]),
        (["--json", "/"], ["--json /", "cannot be written"]),
        (["--keep", "/"], ["--keep /", "exists"]),
        (["--", "epochs", "1"], ["'epochs'", "--name value"]),
        (["--", "--epochs"], ["'--epochs'"]),
    ],
)
def test_a_mistake_is_one_sentence(argv: list[str], words: list[str], tmp_path: Path) -> None:
    source = [] if "--source-dir" in argv else ["--source-dir", str(_stranger(tmp_path))]
    with pytest.raises(UserError) as error:
        entry.plan(entry.parse([*source, *argv]))
    assert all(word in str(error.value) for word in words)


def _stranger(folder: Path) -> Path:
    (folder / "train.py").write_text("")
    return folder


def test_what_the_toolkit_would_install_is_refused(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(UserError, match="toolkit would install it"):
        entry.plan(entry.parse(["--source-dir", str(_stranger(tmp_path))]))


def test_hyperparameters_after_two_dashes() -> None:
    assert entry.pairs(["--epochs", "1", "--lr=1e-3", "--name", "true", "--text", "a b"]) == {
        "epochs": 1,
        "lr": 1e-3,
        "name": True,
        "text": "a b",
    }


GOOD: list[dict[str, Any]] = [
    {
        **{"host": rank // 2, "rank": rank, "local_rank": rank % 2, "node_rank": rank // 2, "world_size": 4},
        **{"weights": "abc", "metrics": {"test/accuracy": 0.5}, "memory_mb": 500},
        "prepare_data": ["Data.prepare_data in fit"] if rank % 2 == 0 else [],
        "files": ["model/config.json"] if rank == 0 else [],
        "batches": [[f"batch {rank} {i}", 8] for i in range(4)],
        "samples": [f"sample {rank} {i}" for i in range(32)],
    }
    for rank in range(4)
]
ALL = ["Data.prepare_data in fit", "Model.prepare_data in fit for all nodes"]
WIRES: dict[str, tuple[str, Any]] = {
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
    "memory-per-rank": ("the others' data", lambda ranks: ranks[0].update(memory_mb=5000)),
    "hosts-succeeded": ("a failure", lambda ranks: None),
    "success-or-failure-file": ("a failure", lambda ranks: None),
}


@pytest.mark.parametrize("broken", [None, *WIRES])
def test_each_check_sees_its_wire(broken: str | None, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    ranks, cast = copy.deepcopy(GOOD), [Host(i, f"127.0.0.{i + 1}", tmp_path / f"{i}", exit_code=0) for i in range(2)]
    for host in cast:
        (host.base / "output").mkdir(parents=True)
        (host.base / "output/success").touch()
    if broken:
        WIRES[broken][1](ranks)
        if WIRES[broken][0] == "a failure":
            cast[1].exit_code = 1
    ranks.sort(key=lambda rank: rank["rank"])
    verdicts = {c.name: c.verdict for c in checks.judge(Plan(2, 2, "none", tmp_path), tmp_path, cast, ranks)}
    failed = {name for name, verdict in verdicts.items() if verdict == "failed"}
    assert failed >= {broken.strip()} if broken else not failed


def test_what_s3_kept_is_restored_on_every_host_and_is_nobodys_writing(tmp_path: Path) -> None:
    first = hosts.lay_out(Plan(2, 1, "none", ROOT / "src"), tmp_path / "first")
    (first[0].base / "checkpoints/of-rank-0").write_text("rank 0")
    kept = hosts.upload(first, tmp_path / "s3")
    plan = Plan(2, 1, "none", ROOT / "src", restored=kept)
    again = hosts.lay_out(plan, tmp_path / "again")
    assert [(host.base / "checkpoints/of-rank-0").read_text() for host in again] == ["rank 0", "rank 0"]
    ranks = copy.deepcopy(GOOD)
    assert checks._one_writer(plan, again, ranks).verdict == "held"
    (again[1].base / "checkpoints/of-rank-1").touch()
    assert checks._one_writer(plan, again, ranks).verdict == "failed"


@pytest.mark.parametrize(
    "first_step, weights, failed",
    [
        (7, "abc", set()),
        (0, "abc", {"goes-on"}),
        (7, "abd", {"weights-as-undisturbed"}),
        (7, None, {"weights-as-undisturbed"}),
    ],
)
def test_a_restart_goes_on_and_comes_to_the_same(first_step: int, weights: str | None, failed: set[str]) -> None:
    again = [{**rank, "first_step": first_step, "weights": weights or str(rank["rank"])} for rank in GOOD]
    assert {check.name for check in checks.judge_restart(again, GOOD) if check.verdict == "failed"} == failed
    assert checks.judge_restart([], GOOD)[0].verdict == "failed"


@pytest.mark.parametrize("kind", ["stop_host", "lose_host"])
@pytest.mark.parametrize(
    "at, codes, verdict, words",
    [
        (2.0, (1, 143), "held", "host 2 after 10.0 s"),
        (2.0, (0, 143), "failed", "not every host took notice"),
        (0.0, (0, 0), "failed", "host 2 never got to step 2"),
    ],
)
def test_a_halted_host_takes_the_others_along(
    kind: str, at: float, codes: tuple[int, int], verdict: str, words: str, tmp_path: Path
) -> None:
    cast = [Host(i, "", tmp_path, exit_code=code, ended_at=12.0) for i, code in enumerate(codes)]
    cast[1].halted_at = at
    plan = dataclasses.replace(Plan(2, 2, "none", tmp_path), **{kind: 1})  # type: ignore[arg-type]
    [check] = checks.judge(plan, tmp_path, cast, [])
    assert (check.name, check.verdict) == ("ends-in-time", verdict) and words in check.detail


def test_rank_0_alone_may_prepare_for_all_nodes() -> None:
    ranks = copy.deepcopy(GOOD)
    ranks[0]["prepare_data"] = ALL
    assert checks._prepare_data(Plan(2, 2, "none", Path()), ranks).verdict == "held"


def test_metrics_that_nobody_logged_are_not_identical() -> None:
    ranks = [{**rank, "metrics": {}} for rank in copy.deepcopy(GOOD)]
    assert checks._same("metrics-identical", ranks, "metrics").verdict == "skipped"


def evidence(*batches: list[list[str]], told: bool = True) -> list[dict[str, Any]]:
    """What the witness notes of ranks that see these batches, whose samples it can tell apart or not."""
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
        (evidence(ABCD, EFGH), "held", "0 of 8 samples on more than one rank"),
        (evidence(ABCD, EFGH, told=False), "held", "0 of 4 batches on more than one rank"),
        (evidence(ABCD, ABCD), "failed", "4 of 4 samples on more than one rank; ranks 0 and 1 both saw 2 of 2 batches"),
        (evidence(ABCD, EFGH, ABCD[1:], told=False), "failed", "ranks 0 and 2 both saw 1 of 1 batches"),
        (evidence(ABCD, [["d", "b"], ["a", "c"]]), "failed", "ranks 0 and 1 both saw 4 of 4 samples"),
        (evidence(ABCD, [["d", "b"], ["g", "h"]]), "held", "2 of 6 samples on more than one rank"),
        (evidence([["a", "a"]] * 4, [["a", "a"]] * 4), "skipped", "recur"),
        (evidence([], []), "skipped", "no batch was seen"),
        (GOOD[:1], "skipped", "one rank"),
        *((sampled(*sizes), "held", "on more") for sizes in ((2, 65, 1), (2, 65, 16), (4, 66, 8), (8, 3, 4))),
    ],
)  # fmt: skip
def test_data_is_divided(ranks: list[dict[str, Any]], verdict: str, detail: str) -> None:
    found = checks._data_divided(Plan(1, len(ranks), "none", Path()), ranks)
    assert found.verdict == verdict and detail in found.detail


def test_the_witness_tells_samples_apart_where_it_can() -> None:
    """A tensor of other length than the batch is no column of it; a batch of strings has a digest, and no samples."""
    spec = importlib.util.spec_from_file_location("witness", hosts.STANDINS / "rehearsal_witness.py")
    assert spec and spec.loader
    witness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(witness)

    def note(*batches: Any, epoch: int = 0) -> tuple[list[Any], list[str]]:
        recorder = SimpleNamespace(seen={"batches": [], "samples": []}, first_epoch=0)
        for batch in batches:
            witness.Witness.on_train_batch_start(recorder, SimpleNamespace(current_epoch=epoch), None, batch, 0)
        return recorder.seen["batches"], recorder.seen["samples"]

    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([1, 0, 1])
    batches, samples = note({"x": x, "y": (y, [torch.zeros(1)])}, {"x": x.flip(0), "y": (y, [torch.zeros(1)])})
    assert [size for _, size in batches] == [3, 3] and batches[0] != batches[1]
    assert len(samples) == 6 and set(samples[:3]) == set(samples[3:]), "the same samples in another batch"
    assert note({"x": x, "scale": 0.5})[0] == note({"x": x.clone(), "scale": 0.5})[0] != note({"x": x, "scale": 1.0})[0]
    batches, samples = note(["one", "other"], ["one", "another"], [torch.eye(2).to_sparse()])
    assert len({digest for digest, _ in batches}) == 3 and [size for _, size in batches] == [0, 0, 0] and not samples
    assert note(x, epoch=1) == ([], [])


@pytest.mark.parametrize("kill", [True, False])
def test_the_cause_has_to_be_in_the_first_1024_characters(kill: bool, tmp_path: Path) -> None:
    cast = [Host(i, f"127.0.0.{i + 1}", tmp_path / f"{i}", exit_code=1, ended_at=12.0) for i in range(2)]
    for host, text in zip(cast, ("rank 3 on host b failed", "x" * 1024 + "rank 3"), strict=True):
        (host.base / "output").mkdir(parents=True)
        (host.base / "output/failure").write_text(text)
    plan = Plan(2, 2, "smddp", tmp_path, fail_rank=None if kill else 3, kill_rank=3 if kill else None)
    found = {c.name: c for c in checks.judge(plan, tmp_path, cast, [{**GOOD[3], "fault_at": 2.0}])}
    assert found["ends-in-time"].verdict == "held" and "10.0 s" in found["ends-in-time"].detail
    assert found["failure-names-cause"].verdict == "failed" and "[2]" in found["failure-names-cause"].detail


@pytest.mark.parametrize(
    "text, image, problem",
    [
        ("pytorch-lightning  # and why\n", "2.13.0", None),
        ("torch==2.13.0\n", "2.13.0", "replaces the image's build"),
        ("nvidia-nccl-cu12\n", "2.13.0", "replaces the image's build"),
        ("pytorch-lightning\n", "1.9.0", "the image has 1.9.0"),
        ("pytorch-lightning==0.1\n", "2.13.0", "is what was rehearsed"),
        ("surely-no-such-package\n", "2.13.0", "not installed here"),
        ("--extra-index-url x\n", "2.13.0", "cannot be judged"),
    ],
)
def test_requirements(text: str, image: str, problem: str | None, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    packages, check = requirements.check(path, image)
    assert check.verdict == ("failed" if problem else "held") and (problem or "torch") in check.detail
    assert not any(package.startswith(("torch==", "nvidia")) for package in packages)


def test_own_requirements_keep_every_images_torch() -> None:
    from launch.profiles import PROFILES

    for profile in PROFILES.values():
        packages, check = requirements.check(ROOT / "src/requirements.txt", profile.torch)
        assert check.verdict == "held", check.detail
        assert any(package.startswith("pytorch-lightning==") for package in packages)
