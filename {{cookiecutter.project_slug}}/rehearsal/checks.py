"""What must be true after a rehearsal: each check has a stable name, a verdict and one line of detail."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import shorten
from typing import Any

from rehearsal.hosts import Host, Plan, environment

Rank = dict[str, Any]
RECURRING = 0.1  # of what a rank sees in an epoch may be there twice, else what ranks have in common proves nothing
LONG = ("batches", "samples")  # digests of what a rank was given: thousands, for `data-divided` alone
FOR_ALL = "for all nodes"  # how the recorder marks prepare_data_per_node=False: rank 0 alone calls it


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    verdict: str  # passed, failed, skipped
    detail: str


def evidence(run: Path) -> list[Rank]:
    """What the recorders wrote, by rank; a process that never reached a Trainer is not among them."""
    ranks = [json.loads(path.read_text()) for path in sorted((run / "evidence").glob("rank-*.json"))]
    return sorted((rank for rank in ranks if "rank" in rank), key=lambda rank: (rank["rank"], rank["host"]))


def judge(
    plan: Plan, run: Path, hosts: list[Host], ranks: list[Rank], undisturbed: list[Rank] | None = None
) -> list[Check]:
    """Every check, in the order of the report; after a host's failure those that lack evidence are skipped.

    Args:
        undisturbed: ranks of a job that was not interrupted, where `ranks` are those of one that was restarted.
    """
    if plan.interrupts:
        return [_interruption(plan, hosts)]
    checks = [_hosts(hosts), _files(hosts)]
    if plan.fault:
        at = next((rank["fault_at"] for rank in ranks if "fault_at" in rank), None)
        return [*checks, _ends(hosts, at, f"rank {plan.target} never reached its fault"), _cause(plan, hosts)]
    checks += [_world_size(plan, ranks), _ranks(plan, ranks), _node_ranks(plan, ranks)]
    checks += [_prepare_data(ranks), _data_divided(plan, ranks), _same("weights-identical", ranks, "weights")]
    checks += [_same("metrics-identical", ranks, "metrics"), _one_writer(plan, hosts, ranks)]
    if plan.distribution == "smddp":
        refused = "; ".join(sorted({path.read_text() for path in (run / "evidence").glob("refused-*")}))
        checks.append(_check("smddp-contract", not refused, refused or "the stub refused nothing"))
    checks.append(_predicts(plan, run, hosts))
    if undisturbed is not None:
        checks += _restart(ranks, undisturbed)
    missing = ("skipped", "the job failed before") if checks[0].verdict == "failed" else ("failed", None)
    return [Check(c.name, missing[0], missing[1] or c.detail) if c.verdict == "incomplete" else c for c in checks]


def _check(name: str, passed: bool | None, detail: str) -> Check:
    """None: `detail` is what is missing, which a host's failure may explain."""
    return Check(name, "incomplete" if passed is None else "passed" if passed else "failed", detail)


def _hosts(hosts: list[Host]) -> Check:
    """Each host's exit status, and each cause once."""
    ends = ["killed at the time limit" if host.overdue else f"exit {host.exit_code}" for host in hosts]
    said = [f"host {number}: {end}" for number, end in enumerate(ends, 1)]
    said += dict.fromkeys(_sentence(host.file("failure")) for host in hosts if host.exit_code)
    return _check("hosts-succeeded", not any(host.exit_code for host in hosts), "; ".join(filter(None, said)))


def _sentence(failure: str | None) -> str:
    """The first line of a failure file that says something."""
    lines = [line.strip() for line in (failure or "").splitlines()]
    telling = [re.sub(r'^ErrorMessage "', "", line) for line in lines if not re.match(r"(ExitCode|\w+Error:$|$)", line)]
    return shorten(telling[0], 400, placeholder=" …") if telling else ""


def _files(hosts: list[Host]) -> Check:
    """`output/success` after exit 0, `output/failure` after anything else."""
    wrong = []
    for host in hosts:
        found = [name for name in ("success", "failure") if host.file(name) is not None]
        wrong += [host.index + 1] * (found != ["failure" if host.exit_code else "success"])
    said = f"not on hosts {wrong}" if wrong else "one per host, the right one"
    return _check("success-or-failure-file", not wrong, said)


def _world_size(plan: Plan, ranks: list[Rank]) -> Check:
    sizes = Counter(rank["world_size"] for rank in ranks)
    seen = ", ".join(f"{size} on {count} ranks" for size, count in sizes.items()) or "no rank reached a Trainer"
    passed = set(sizes) == {plan.world_size} if ranks else None
    return _check("world-size", passed, f"{seen}; expected {plan.world_size}")


def _ranks(plan: Plan, ranks: list[Rank]) -> Check:
    found, expected = [rank["rank"] for rank in ranks], list(range(plan.world_size))
    absent_only = len(set(found)) == len(found) and set(found) < set(expected)
    return _check("ranks-complete", None if absent_only else found == expected, f"ranks {found}")


def _node_ranks(plan: Plan, ranks: list[Rank]) -> Check:
    """Node and local rank follow from the host that the process ran on."""
    wrong = []
    for r in ranks:
        if r["node_rank"] != r["host"]:
            wrong.append(f"rank {r['rank']} on host {r['host'] + 1} says node rank {r['node_rank']}")
        if r["rank"] != r["host"] * plan.processes + r["local_rank"]:
            wrong.append(f"rank {r['rank']} is on host {r['host'] + 1} with local rank {r['local_rank']}")
    absent = len(ranks) < plan.world_size and not wrong
    said = f"{len(ranks)} of {plan.world_size} ranks reached a Trainer" if absent else f"0 to {plan.hosts - 1}"
    return _check("node-ranks", None if absent else not wrong, "; ".join(wrong) or said)


def _prepare_data(ranks: list[Rank]) -> Check:
    """In each of Trainer's runs once per node, by local rank 0. (`test` on SMDDP finds the data prepared by `fit`.)"""
    name = "prepare-data-once-per-node"
    if not any(rank["prepare_data"] for rank in ranks):
        return Check(name, "skipped", "no prepare_data was called")
    wrong = [
        f"rank {r['rank']} (local rank {r['local_rank']}) called {what} {r['prepare_data'].count(what)} times"
        for r in ranks
        for what in dict.fromkeys(r["prepare_data"])
        if r["prepare_data"].count(what) > 1 or r["rank" if what.endswith(FOR_ALL) else "local_rank"] != 0
    ]
    leaders = [r["prepare_data"] for r in ranks if r["local_rank"] == 0]
    per_node = [[what for what in calls if not what.endswith(FOR_ALL)] for calls in leaders]
    if not wrong and any(calls != per_node[0] for calls in per_node):
        return _check(name, None, f"calls differ between nodes: {per_node}")
    return _check(name, not wrong, "; ".join(wrong) or ", ".join(leaders[0]))


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
        return _check(name, None, f"ranks {values.get('null', 'all')} ended before there were any")
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
    return _check(name, len(values) == 1 or None, said)  # ranks that failed did so at different steps


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
    if filled:
        said += f"; not on host 1: {', '.join(filled[:3])}"
    return _check("one-writer", len(writers) == 1 and not filled if said else None, said or "no rank wrote anything")


def _predicts(plan: Plan, run: Path, hosts: list[Host]) -> Check:
    """`predict.py --sample` answers the project's own sample input with the trained model."""
    name, program = "model-predicts", hosts[0].base / "code" / "predict.py"
    if any(host.exit_code for host in hosts):
        return Check(name, "skipped", "the job failed before")
    if not program.is_file():
        return Check(name, "skipped", "no predict.py in the source folder")
    command = [sys.executable, str(program), "--model_dir", str(hosts[0].base / "model"), "--sample"]
    env = {**environment(plan, run, hosts[0], 7777, mpirun=False), "PYTHONPATH": ""}  # without the stubs
    try:
        done = subprocess.run(command, cwd=run, env=env, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return _check(name, False, "predict.py did not answer in 120 s")
    if done.returncode == 2 and "--sample" in done.stderr:
        return Check(name, "skipped", "predict.py has no option --sample, which would answer a sample input")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or [""]
    answer = " ".join(lines[-1].split())
    return _check(name, done.returncode == 0 and bool(answer), answer or "no answer")


def _restart(ranks: list[Rank], undisturbed: list[Rank]) -> list[Check]:
    """A restarted job resumed from a checkpoint, and its weights are those of a job that was not interrupted."""
    steps = sorted({rank.get("first_step", 0) for rank in ranks})
    again, alone = ({rank.get("weights", "none") for rank in attempt} for attempt in (ranks, undisturbed))
    equal = again == alone and len(again) == 1 and "none" not in again
    trained = any(rank.get("batches") for rank in ranks)
    late = "nothing was left to train when it restarted; interrupt a longer run: --batches, or -- --epochs"
    began = f"after step {' or '.join(map(str, steps))}" if trained or not steps else late
    said = f"{', '.join(sorted(again))} restarted and {', '.join(sorted(alone))} undisturbed"
    resumed = _check("resumes-from-checkpoint", steps[0] > 0 and trained if steps else None, began)
    return [resumed, _check("weights-as-undisturbed", equal or None, said)]


def _ends(hosts: list[Host], at: float | None, otherwise: str) -> Check:
    """Every host ended by itself, in the time it had after the fault `at`."""
    seconds = [f"host {host.index + 1} after {host.ended_at - at:.1f} s" for host in hosts if at]
    return _check("ends-in-time", bool(at) and not any(h.overdue for h in hosts), ", ".join(seconds) or otherwise)


def _interruption(plan: Plan, hosts: list[Host]) -> Check:
    at, ended = hosts[plan.target].interrupted_at, f"hosts ended with {[host.exit_code for host in hosts]}"
    if at and any(host.exit_code == 0 for host in hosts):
        return _check("ends-in-time", False, f"one ended as if nothing had happened: {ended}")
    place = "step 2 with a checkpoint (-- --checkpoint_steps 1 writes some)" if plan.fault == "lose-host" else "step 2"
    return _ends(hosts, at, f"host {plan.target + 1} never reached {place}: {ended}")


def _cause(plan: Plan, hosts: list[Host]) -> Check:
    """Of output/failure SageMaker shows the first 1024 characters, as FailureReason."""
    # A host whose only rank was killed has nobody left to write it.
    gone = plan.target if plan.fault == "kill-rank" and plan.processes == 1 else -1
    writing = [host for host in hosts if host.index != gone] or hosts
    texts = {host.index + 1: (host.file("failure") or "")[:1024] for host in writing}
    silent = [host for host, text in texts.items() if not re.search(rf"\brank\s*:?\s*{plan.target}\b", text)]
    said = f"hosts {silent} do not name rank {plan.target}" if silent else _sentence(writing[0].file("failure"))
    return _check("failure-names-cause", not silent, said)
