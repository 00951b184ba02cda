"""What has to hold after a rehearsal: each check has a stable name, a verdict and one line of detail."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rehearsal.hosts import Host, Plan

Rank = dict[str, Any]
RECURRING = 0.1  # of what a rank sees in an epoch may be there twice, else what ranks have in common proves nothing
LONG = ("batches", "samples")  # digests of what a rank was given: thousands, for `data-divided` alone
FOR_ALL = "for all nodes"  # how the witness marks prepare_data_per_node=False: rank 0 alone calls it


@dataclass(frozen=True)
class Check:
    name: str
    verdict: str  # held, failed, skipped
    detail: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def evidence(run: Path) -> list[Rank]:
    """What the witnesses wrote, by rank; a process that never reached a Trainer is not among them."""
    ranks = [json.loads(path.read_text()) for path in sorted((run / "evidence").glob("rank-*.json"))]
    return sorted((rank for rank in ranks if "rank" in rank), key=lambda rank: (rank["rank"], rank["host"]))


def refusals(run: Path) -> list[str]:
    """What the SMDDP stand-in refused."""
    return sorted({path.read_text() for path in (run / "evidence").glob("refused-*")})


def judge(plan: Plan, run: Path, hosts: list[Host], ranks: list[Rank]) -> list[Check]:
    """Every check, in the order of the report."""
    if plan.halt is not None:
        return [_halts(plan, hosts, hosts[plan.halt].halted_at)]
    checks = [_hosts(plan, hosts), _files(hosts)]
    if plan.fault is not None:
        at = next((rank["fault_at"] for rank in ranks if "fault_at" in rank), None)
        return [*checks, _ends(hosts, at, f"rank {plan.fault} never got to the step of its fault"), _cause(plan, hosts)]
    checks += [_world_size(plan, ranks), _ranks(plan, ranks), _node_ranks(plan, ranks)]
    checks += [_prepare_data(plan, ranks), _data_divided(plan, ranks), _same("weights-identical", ranks, "weights")]
    checks += [_same("metrics-identical", ranks, "metrics"), _one_writer(plan, hosts, ranks)]
    if plan.distribution == "smddp":
        refused = refusals(run)
        checks.append(
            _check("smddp-contract", not refused, "; ".join(refused) or "nothing that SMDDP refuses was asked")
        )
    return [*checks, _predicts(plan, run, hosts), _memory(plan, ranks)]


def judge_restart(ranks: list[Rank], undisturbed: list[Rank]) -> list[Check]:
    """Whether an attempt went on where the one before was halted, and came to what one does that is left alone."""
    steps = sorted({rank.get("first_step", 0) for rank in ranks})
    again, alone = ({rank.get("weights", "none") for rank in attempt} for attempt in (ranks, undisturbed))
    said = f"{', '.join(sorted(again))} restarted and {', '.join(sorted(alone))} left alone"
    return [
        _check("goes-on", bool(steps) and steps[0] > 0, f"began after step {' or '.join(map(str, steps))}"),
        _check("weights-as-undisturbed", again == alone and len(again) == 1, said),
    ]


def _check(name: str, held: bool, detail: str) -> Check:
    return Check(name, "held" if held else "failed", detail)


def _hosts(plan: Plan, hosts: list[Host]) -> Check:
    said = [f"host {host.index + 1}: {_ending(host)}" for host in hosts]
    return _check("hosts-succeeded", all(host.exit_code == 0 for host in hosts), "; ".join(said))


def _ending(host: Host) -> str:
    if host.exit_code == 0:
        return "success"
    if host.overdue:
        return "did not end and was killed"
    return f"exit {host.exit_code}" + (f", {cause}" if (cause := _sentence(host.file("failure"))) else "")


def _sentence(failure: str | None) -> str:
    """The first telling line of a failure file."""
    lines = [line.strip() for line in (failure or "").splitlines()]
    telling = [re.sub(r'^ErrorMessage "', "", line) for line in lines if not re.match(r"(ExitCode|\w+Error:$|$)", line)]
    return telling[0][:300] if telling else ""


def _files(hosts: list[Host]) -> Check:
    """`output/success` after exit 0, `output/failure` after anything else."""
    wrong = []
    for host in hosts:
        expected, other = ("success", "failure") if host.exit_code == 0 else ("failure", "success")
        if host.file(expected) is None or host.file(other) is not None:
            wrong.append(f"host {host.index + 1} ended with {host.exit_code} and has no output/{expected} alone")
    return _check("success-or-failure-file", not wrong, "; ".join(wrong) or "one per host, the right one")


def _world_size(plan: Plan, ranks: list[Rank]) -> Check:
    sizes = Counter(rank["world_size"] for rank in ranks)
    seen = ", ".join(f"{size} on {count} ranks" for size, count in sizes.items()) or "no rank reached a Trainer"
    return _check("world-size", set(sizes) == {plan.world_size}, f"{seen}; expected {plan.world_size}")


def _ranks(plan: Plan, ranks: list[Rank]) -> Check:
    found = [rank["rank"] for rank in ranks]
    return _check("ranks-complete", found == list(range(plan.world_size)), f"ranks {found}")


def _node_ranks(plan: Plan, ranks: list[Rank]) -> Check:
    """Node and local rank follow from the host that the process ran on, and count its processes once each."""
    wrong = [
        f"rank {r['rank']} on host {r['host'] + 1} says node rank {r['node_rank']}"
        for r in ranks
        if r["node_rank"] != r["host"]
    ]
    for host in range(plan.hosts):
        local = sorted(r["local_rank"] for r in ranks if r["host"] == host)
        if local != list(range(plan.processes)):
            wrong.append(f"host {host + 1} has local ranks {local}")
        wrong += [
            f"rank {r['rank']} is on host {host + 1}"
            for r in ranks
            if r["host"] == host and r["rank"] != host * plan.processes + r["local_rank"]
        ]
    return _check("node-ranks", not wrong, "; ".join(wrong) or f"0 to {plan.hosts - 1}, host by host")


def _prepare_data(plan: Plan, ranks: list[Rank]) -> Check:
    """In each of Trainer's runs once per node, by local rank 0. (`test` on SMDDP finds the data prepared by `fit`.)"""
    if not any(rank["prepare_data"] for rank in ranks):
        return Check("prepare-data-once-per-node", "skipped", "no prepare_data was called")
    wrong = [
        f"rank {r['rank']} (local rank {r['local_rank']}) called {' and '.join(r['prepare_data'])}"
        for r in ranks
        if r["local_rank"] != 0 and r["prepare_data"]
    ]
    leaders = [r for r in ranks if r["local_rank"] == 0]
    for leader in leaders:
        calls: Counter[str] = Counter(leader["prepare_data"])
        wrong += [f"rank {leader['rank']} called {what} {n} times" for what, n in calls.items() if n > 1]
    per_node = [[what for what in leader["prepare_data"] if not what.endswith(FOR_ALL)] for leader in leaders]
    if any(calls != per_node[0] for calls in per_node):
        wrong.append(f"calls differ between nodes: {per_node}")
    wrong += [
        f"rank {leader['rank']} called {what}"
        for leader in leaders
        for what in leader["prepare_data"]
        if what.endswith(FOR_ALL) and leader["rank"] != 0
    ]
    return _check("prepare-data-once-per-node", not wrong, "; ".join(wrong) or ", ".join(leaders[0]["prepare_data"]))


def _data_divided(plan: Plan, ranks: list[Rank]) -> Check:
    """No two ranks saw the same batch, nor the same samples: more than half of the smaller one's, in the first epoch.

    A batch of one sample counts as that sample, since samplers repeat up to world size - 1 of them to make ranks even.
    """
    name = "data-divided"
    if plan.world_size == 1:
        return Check(name, "skipped", "one rank has all of the data")
    batches = [[digest for digest, size in rank.get("batches", []) if size != 1] for rank in ranks]
    samples = [rank.get("samples", []) for rank in ranks]
    said, judged = [], False
    for one, other in itertools.combinations(range(len(ranks)), 2):
        who = f"ranks {ranks[one]['rank']} and {ranks[other]['rank']}"
        for kind, seen, allowed in (("batches", batches, 0.0), ("samples", samples, 0.5)):
            few, many = sorted((seen[one], seen[other]), key=len)
            if not few or any(len(set(part)) < (1 - RECURRING) * len(part) for part in (few, many)):
                continue
            judged = True
            common = len(set(few) & set(many))
            if common > allowed * len(few) and (kind == "batches" or common >= plan.world_size):
                said.append(f"{who} both saw {common} of {len(few)} {kind}")
                break
    if not judged:
        none = not any(rank.get("batches") for rank in ranks)
        return Check(name, "skipped", "no batch was seen" if none else "the same batches recur on a rank by themselves")
    kind, seen = ("samples", samples) if any(samples) else ("batches", batches)
    times = Counter(digest for part in seen for digest in set(part))
    total = f"{sum(n > 1 for n in times.values())} of {len(times)} {kind} on more than one rank"
    return _check(name, not said, "; ".join([total, *said[:3]]))


def _same(name: str, ranks: list[Rank], key: str) -> Check:
    values: dict[str, list[int]] = {}
    for rank in ranks:
        values.setdefault(json.dumps(rank.get(key)), []).append(rank["rank"])
    if not ranks or "null" in values:
        return _check(name, False, f"ranks {values.get('null', 'all')} ended before there were any")
    if set(values) == {"{}"}:
        return Check(name, "skipped", "none was logged in validation or test")
    if key == "weights":
        said = "; ".join(f"{value.strip(chr(34))} on ranks {found}" for value, found in values.items())
    elif len(values) == 1:
        said = ", ".join(f"{metric} {value:.4f}" for metric, value in ranks[0][key].items())
    else:
        every = sorted({metric for rank in ranks for metric in rank[key]})
        differing = [m for m in every if len({str(rank[key].get(m)) for rank in ranks}) > 1]
        said = "; ".join(f"{m}: {[rank[key].get(m) for rank in ranks]}" for m in differing)
    return _check(name, len(values) == 1, said)


def _one_writer(plan: Plan, hosts: list[Host], ranks: list[Rank]) -> Check:
    """Artifacts and checkpoints come from one rank; other hosts' folders stay empty, but for what was restored."""
    writers = {rank["rank"]: rank["files"] for rank in ranks if rank["files"]}
    restored = {path.relative_to(plan.restored) for path in plan.restored.rglob("*")} if plan.restored else set()
    filled = [
        str(path.relative_to(host.base.parent))
        for host in hosts[1:]
        for folder in ("model", "checkpoints", "output/data")
        for path in (host.base / folder).rglob("*")
        if path.is_file() and path.relative_to(host.base / folder) not in restored
    ]
    said = "; ".join(f"rank {rank} wrote {len(files)} files, {files[0]} first" for rank, files in writers.items())
    if len(hosts) > 1 and filled:
        said += f"; not on host 1: {', '.join(filled[:3])}"
    return _check("one-writer", len(writers) == 1 and not filled, said or "no rank wrote anything")


def _predicts(plan: Plan, run: Path, hosts: list[Host]) -> Check:
    if not (plan.source / "predict.py").is_file():
        return Check("model-predicts", "skipped", "no predict.py in the source folder")
    if any(host.exit_code for host in hosts):
        return Check("model-predicts", "skipped", "the job did not end well")
    code = hosts[0].base / "code"
    command = [
        sys.executable,
        str(code / "predict.py"),
        "--model_dir",
        str(hosts[0].base / "model"),
        "Île de la Réunion",
    ]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(run / "tmp")}
    try:
        done = subprocess.run(
            command, cwd=run, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return _check("model-predicts", False, "predict.py did not answer in 120 s")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return _check(
        "model-predicts", done.returncode == 0 and bool(lines), " ".join(lines[-1].split()) if lines else "no answer"
    )


def _memory(plan: Plan, ranks: list[Rank]) -> Check:
    """No rank carries the others' data: the largest peak is at most 1.5 times the smallest plus 256 MiB."""
    if len(ranks) < plan.world_size:
        return _check("memory-per-rank", False, f"{len(ranks)} of {plan.world_size} ranks told")
    peaks = [rank["memory_mb"] for rank in ranks]
    return _check("memory-per-rank", max(peaks) <= 1.5 * min(peaks) + 256, f"peaks of {min(peaks)} to {max(peaks)} MiB")


def _ends(hosts: list[Host], at: float | None, otherwise: str) -> Check:
    """Every host ended by itself, in the time it had after the fault `at`."""
    if not at:
        return _check("ends-in-time", False, otherwise)
    seconds = [f"host {host.index + 1} after {host.ended_at - at:.1f} s" for host in hosts]
    return _check("ends-in-time", not any(host.overdue for host in hosts), ", ".join(seconds))


def _halts(plan: Plan, hosts: list[Host], at: float) -> Check:
    ended = "; ".join(f"host {host.index + 1} ended with {host.exit_code}" for host in hosts)
    place = "step 2" + " with a checkpoint (-- --checkpoint_steps 1 writes some)" * (plan.lose_host is not None)
    if at and any(host.exit_code == 0 for host in hosts):
        return _check("ends-in-time", False, f"not every host took notice: {ended}")
    return _ends(hosts, at, f"host {(plan.halt or 0) + 1} never got to {place}: {ended}")


def _cause(plan: Plan, hosts: list[Host]) -> Check:
    """Of output/failure SageMaker shows the first 1024 characters, as FailureReason."""
    named: Callable[[str], bool] = lambda text: bool(re.search(rf"\brank\s*:?\s*{plan.fault}\b", text))  # noqa: E731
    # A host whose only rank was killed has nobody left to say so.
    telling = [host for host in hosts if plan.processes > 1 or plan.kill_rank != host.index] or hosts
    silent = [host.index + 1 for host in telling if not named((host.file("failure") or "")[:1024])]
    said = f"hosts {silent} do not name rank {plan.fault}" if silent else _sentence(telling[0].file("failure"))
    return _check("failure-names-cause", not silent, said)
