"""What must be true of an attempt: checks with stable names, each from evidence to a verdict.

A check is a function of the plan and an attempt; its name, which reports and their readers rely
on, is its key in the tables at the end.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from smlightning.rehearsal import prediction
from smlightning.rehearsal.evidence import FOR_ALL_NODES, Attempt, Rank
from smlightning.rehearsal.hosts import Host
from smlightning.rehearsal.plan import KILL_RANK, LOSE_HOST, Fault, Plan

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Of what a rank sees in an epoch so much may be there twice; of more nothing is concluded.
RECURRING = 0.1
SHARED_SAMPLES = 0.5  # of the smaller one's; two ranks with more in common see the same data
FAILURE_REASON = 1024  # characters of output/failure that SageMaker shows
# A shard below a job's folder, or one that is being written, by its rank (checkpoints/files.py).
SHARD = re.compile(r"checkpoints/\.?\d{6,}-(?:best-)?(\d{5})-of-\d{5}.*\.shard")
FAILED_BEFORE = "the job failed before"


@dataclass(frozen=True)
class Check:
    """A verdict of the report."""

    name: str
    verdict: str  # PASSED, FAILED or SKIPPED
    detail: str


@dataclass(frozen=True)
class Conclusion:
    """What a check concludes, before it has its name."""

    verdict: str
    detail: str
    # The evidence is not complete: no fault of its own if a host failed, else a failure.
    incomplete: bool = False


Judge = Callable[[Plan, Attempt], Conclusion]


def passed_if(condition: bool, detail: str) -> Conclusion:
    return Conclusion(PASSED if condition else FAILED, detail)


def skipped(detail: str) -> Conclusion:
    return Conclusion(SKIPPED, detail)


def incomplete(detail: str) -> Conclusion:
    return Conclusion(FAILED, detail, incomplete=True)


def judge(plan: Plan, attempt: Attempt) -> list[Check]:
    """Every check of an attempt that was not interrupted, in the order of the report."""
    if plan.fault:
        return named(AFTER_A_FAULT, plan, attempt)
    checks = dict(OF_A_JOB)
    if plan.distribution != "smddp":
        del checks["smddp-contract"]
    return named(checks, plan, attempt)


def judge_interruption(plan: Plan, interrupted: Attempt) -> list[Check]:
    """Whether an interrupted attempt ended as it should."""
    return named(OF_AN_INTERRUPTION, plan, interrupted)


def judge_restart(restarted: Attempt, undisturbed: Attempt) -> list[Check]:
    """Whether a restarted attempt resumed, and ended as one that was not interrupted."""
    outcomes = {
        "resumes-from-checkpoint": resumes_from_checkpoint(restarted),
        "weights-as-undisturbed": weights_as_undisturbed(restarted, undisturbed),
    }
    return [with_name(name, outcome, restarted) for name, outcome in outcomes.items()]


def named(table: Mapping[str, Judge], plan: Plan, attempt: Attempt) -> list[Check]:
    return [with_name(name, check(plan, attempt), attempt) for name, check in table.items()]


def with_name(name: str, outcome: Conclusion, attempt: Attempt) -> Check:
    if outcome.incomplete and not attempt.succeeded:
        return Check(name, SKIPPED, FAILED_BEFORE)
    return Check(name, outcome.verdict, outcome.detail)


# How the hosts ended.


def hosts_succeeded(plan: Plan, attempt: Attempt) -> Conclusion:
    """Each host's exit status, and each cause once."""
    details = []
    for host in attempt.hosts:
        end = "killed at the time limit" if host.overdue else f"exit {host.exit_code}"
        details.append(f"host {host.number}: {end}")
    causes = [cause_line(host.output("failure")) for host in attempt.hosts if host.exit_code]
    details += dict.fromkeys(filter(None, causes))
    return passed_if(attempt.succeeded, "; ".join(details))


def cause_line(failure: str | None) -> str:
    """The first line of a failure file that says something."""
    for line in (failure or "").splitlines():
        text = line.strip()
        if not re.match(r"(ExitCode|\w+Error:$|$)", text):
            return shorten(text.removeprefix('ErrorMessage "'), 400, placeholder=" …")
    return ""


def success_or_failure_file(plan: Plan, attempt: Attempt) -> Conclusion:
    """``output/success`` after exit 0, ``output/failure`` after anything else."""
    wrong = []
    for host in attempt.hosts:
        present = [name for name in ("success", "failure") if host.output(name) is not None]
        if present != ["failure" if host.exit_code else "success"]:
            wrong.append(host.number)
    return passed_if(not wrong, f"not on hosts {wrong}" if wrong else "one per host, the right one")


# Which ranks there were.


def world_size(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks say the planned one."""
    expected = f"expected {plan.world_size}"
    if not attempt.ranks:
        return incomplete(f"no rank reached a Trainer; {expected}")
    sizes = Counter(rank.world_size for rank in attempt.ranks)
    seen = ", ".join(f"{size} on {count} ranks" for size, count in sizes.items())
    return passed_if(set(sizes) == {plan.world_size}, f"{seen}; {expected}")


def ranks_complete(plan: Plan, attempt: Attempt) -> Conclusion:
    """Each rank from 0 to world size - 1 is there once."""
    ranks = [rank.rank for rank in attempt.ranks]
    expected = list(range(plan.world_size))
    some_are_absent = len(set(ranks)) == len(ranks) and set(ranks) < set(expected)
    detail = f"ranks {ranks}"
    return incomplete(detail) if some_are_absent else passed_if(ranks == expected, detail)


def node_ranks(plan: Plan, attempt: Attempt) -> Conclusion:
    """Node and local rank follow from the host that the process ran on."""
    wrong = []
    for rank in attempt.ranks:
        host = rank.host + 1
        if rank.node_rank != rank.host:
            wrong.append(f"rank {rank.rank} on host {host} says node rank {rank.node_rank}")
        if rank.rank != rank.host * plan.processes + rank.local_rank:
            local = f"with local rank {rank.local_rank}"
            wrong.append(f"rank {rank.rank} is on host {host} {local}")
    if wrong:
        return Conclusion(FAILED, "; ".join(wrong))
    if len(attempt.ranks) < plan.world_size:
        reached = f"{len(attempt.ranks)} of {plan.world_size} ranks"
        return incomplete(f"{reached} reached a Trainer")
    return Conclusion(PASSED, f"0 to {plan.hosts - 1}")


# What they were given, and what they computed.


def prepare_data_once_per_node(plan: Plan, attempt: Attempt) -> Conclusion:
    """In each of Trainer's runs once per node, by local rank 0.

    ``test`` on SMDDP finds the data prepared by ``fit``.
    """
    if not any(rank.prepare_data for rank in attempt.ranks):
        return skipped("no prepare_data was called")
    wrong = [wrong_call(rank, call, n) for rank, call, n in excess_calls(attempt.ranks)]
    if wrong:
        return Conclusion(FAILED, "; ".join(wrong))
    leaders = [rank.prepare_data for rank in attempt.ranks if rank.local_rank == 0]
    per_node = [without_calls_for_all(calls) for calls in leaders]
    if any(calls != per_node[0] for calls in per_node):
        return incomplete(f"calls differ between nodes: {per_node}")
    return Conclusion(PASSED, ", ".join(leaders[0]))


def without_calls_for_all(calls: Sequence[str]) -> list[str]:
    """Without those for all nodes, which only rank 0 makes."""
    return [call for call in calls if not call.endswith(FOR_ALL_NODES)]


def excess_calls(ranks: Sequence[Rank]) -> list[tuple[Rank, str, int]]:
    """Calls of prepare_data that were too many: (who, which, how often)."""
    excess = []
    for rank in ranks:
        for call, times in Counter(rank.prepare_data).items():
            number = rank.rank if call.endswith(FOR_ALL_NODES) else rank.local_rank
            if times > 1 or number != 0:
                excess.append((rank, call, times))
    return excess


def wrong_call(rank: Rank, call: str, times: int) -> str:
    return f"rank {rank.rank} (local rank {rank.local_rank}) called {call} {times} times"


def data_divided(plan: Plan, attempt: Attempt) -> Conclusion:
    """No two ranks saw the same batch in the first epoch, nor mostly the same samples.

    A batch of one sample counts as that sample, since samplers repeat up to world size - 1 of them
    to give every rank as many.
    """
    if plan.world_size == 1:
        return skipped("one rank has all of the data")
    ranks = attempt.ranks
    pairs = [
        compare_data(one, other, plan.world_size) for one, other in itertools.combinations(ranks, 2)
    ]
    if all(pair is None for pair in pairs):
        if any(rank.batches for rank in ranks):
            return skipped("the same batches recur on a rank by themselves")
        return skipped("no batch was seen")
    kind = "samples" if any(rank.samples for rank in ranks) else "batches"
    holders = Counter(
        digest
        for rank in ranks
        for digest in set(rank.samples if kind == "samples" else batch_digests(rank))
    )
    repeated = sum(number > 1 for number in holders.values())
    shared = [sentence for sentence in pairs if sentence]
    total = f"{repeated} of {len(holders)} {kind} on more than one rank"
    return passed_if(not shared, "; ".join([total, *shared[:3]]))


def compare_data(one: Rank, other: Rank, ranks: int) -> str | None:
    """What two ranks both saw and should not have; empty: nothing; None: it cannot be told."""
    both = f"ranks {one.rank} and {other.rank} both saw"
    known = False
    if may_compare(batches := (batch_digests(one), batch_digests(other))):
        known = True
        common, size = overlap(*batches)
        if common:
            return f"{both} {common} of {size} batches"
    if may_compare(samples := (one.samples, other.samples)):
        known = True
        common, size = overlap(*samples)
        if common > SHARED_SAMPLES * size and common >= ranks:
            return f"{both} {common} of {size} samples"
    return "" if known else None


def batch_digests(rank: Rank) -> list[str]:
    """Batches of more samples than one, or of a number that is not known."""
    return [digest for digest, size in rank.batches if size != 1]


def may_compare(seen: tuple[Sequence[str], Sequence[str]]) -> bool:
    """Whether both saw something, and little of it twice by themselves."""
    return all(part and len(set(part)) >= (1 - RECURRING) * len(part) for part in seen)


def overlap(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """How many both have, and how many the smaller one has."""
    return len(set(one) & set(other)), min(len(one), len(other))


def weights_identical(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks ended with the same weights, those trained and those tested."""
    by_weights: dict[str | None, list[int]] = {}
    for rank in attempt.ranks:
        by_weights.setdefault(rank.weights, []).append(rank.rank)
    if not by_weights or None in by_weights:
        return ended_too_early(by_weights.get(None))
    details = [f"{weights} on ranks {ranks}" for weights, ranks in by_weights.items()]
    return same_or_incomplete(len(by_weights) == 1, "; ".join(details))


def metrics_identical(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks have the same metrics of validation and test."""
    ranks = attempt.ranks
    if not ranks:
        return ended_too_early(None)
    if not any(rank.metrics for rank in ranks):
        return skipped("none was logged in validation or test")
    names = sorted({name for rank in ranks for name in rank.metrics})
    differing = []
    for name in names:
        values = [rank.metrics.get(name) for rank in ranks]
        if len({json.dumps(value) for value in values}) > 1:
            differing.append(f"{name}: {values}")
    if differing:
        return same_or_incomplete(False, "; ".join(differing))
    values_of_all = [f"{name} {value:.4f}" for name, value in ranks[0].metrics.items()]
    return Conclusion(PASSED, ", ".join(values_of_all))


def ended_too_early(ranks: list[int] | None) -> Conclusion:
    return incomplete(f"ranks {ranks or 'all'} ended before there were any")


def same_or_incomplete(same: bool, detail: str) -> Conclusion:
    """Ranks that failed did so at different steps."""
    return Conclusion(PASSED, detail) if same else incomplete(detail)


# What they left behind.


def one_writer(plan: Plan, attempt: Attempt) -> Conclusion:
    """Artifacts and checkpoints come from one rank; other hosts have but what was restored.

    Of a sharded run each rank writes its own shards beside them.
    """
    wrote = [(rank.rank, files) for rank in attempt.ranks if (files := _files_but_shards(rank))]
    elsewhere = files_of_other_hosts(attempt)
    details = [f"rank {rank} wrote {len(files)} files, {files[0]} first" for rank, files in wrote]
    if elsewhere:
        details.append(f"not on host 1: {', '.join(elsewhere[:3])}")
    if not details:
        return incomplete("no rank wrote anything")
    one = len({rank for rank, _ in wrote}) == 1 and not elsewhere
    return passed_if(one, "; ".join(details))


def _files_but_shards(rank: Rank) -> list[str]:
    """What a rank wrote beside its own shards."""
    return [name for name in rank.files if _rank_of_shard(name) != rank.rank]


def _rank_of_shard(name: str) -> int | None:
    """Whose shard a file below `checkpoints` is; None where it is none."""
    match = SHARD.fullmatch(name)
    return int(match[1]) if match else None


def files_of_other_hosts(attempt: Attempt) -> list[str]:
    """What hosts beyond the first have where SageMaker keeps what a job leaves behind, but for the
    shards of their own ranks.
    """
    host_of: dict[int | None, int] = {rank.rank: rank.host for rank in attempt.ranks}
    restored = set()
    if attempt.restored:
        restored = {path.relative_to(attempt.restored) for path in attempt.restored.rglob("*")}
    files = []
    for number, host in enumerate(attempt.hosts[1:], 1):
        for folder in ("model", "checkpoints", "output/data"):
            kept = host.base / folder
            files += [
                str(path.relative_to(attempt.folder))
                for path in kept.rglob("*")
                if path.is_file()
                and path.relative_to(kept) not in restored
                and host_of.get(_rank_of_shard(path.relative_to(host.base).as_posix())) != number
            ]
    return files


def smddp_contract(plan: Plan, attempt: Attempt) -> Conclusion:
    """The stub refuses what SMDDP's documentation does not allow."""
    refusals = "; ".join(attempt.refusals)
    return passed_if(not refusals, refusals or "the stub refused nothing")


def model_predicts(plan: Plan, attempt: Attempt) -> Conclusion:
    """``predict.py --sample`` answers the project's own sample input with the trained model."""
    if not attempt.succeeded:
        return skipped(FAILED_BEFORE)
    if not prediction.program(attempt).is_file():
        return skipped("no predict.py in the source folder")
    ended = prediction.predict_sample(plan, attempt)
    if ended is None:
        return Conclusion(FAILED, f"predict.py did not answer in {prediction.TIMEOUT} s")
    if ended.returncode == 2 and "--sample" in ended.stderr:
        return skipped("predict.py has no option --sample, which would answer a sample input")
    output = ended.stdout if ended.returncode == 0 else ended.stderr
    lines = output.strip().splitlines() or [""]
    answer = " ".join(lines[-1].split())
    return passed_if(ended.returncode == 0 and bool(answer), answer or "no answer")


# After a restart.


def resumes_from_checkpoint(restarted: Attempt) -> Conclusion:
    """All ranks began after a checkpoint's step, with something left to train."""
    steps = sorted({rank.first_step or 0 for rank in restarted.ranks})
    if not steps:
        return incomplete("no rank reached a Trainer")
    if not any(rank.batches for rank in restarted.ranks):
        cure = "interrupt a longer run: --batches, or -- --epochs"
        return Conclusion(FAILED, f"nothing was left to train when it restarted; {cure}")
    return passed_if(steps[0] > 0, f"after step {' or '.join(map(str, steps))}")


def weights_as_undisturbed(restarted: Attempt, undisturbed: Attempt) -> Conclusion:
    """The weights are those of the job that was not interrupted."""
    again = {rank.weights or "none" for rank in restarted.ranks}
    alone = {rank.weights or "none" for rank in undisturbed.ranks}
    equal = again == alone and len(again) == 1 and "none" not in again
    detail = f"{', '.join(sorted(again))} restarted and {', '.join(sorted(alone))} undisturbed"
    return same_or_incomplete(equal, detail)


# After a fault.


def ends_after_fault(plan: Plan, attempt: Attempt) -> Conclusion:
    """Every host ended by itself, in the time it had after a rank's fault."""
    times = [rank.fault_at for rank in attempt.ranks if rank.fault_at is not None]
    if not times:
        return Conclusion(FAILED, f"rank {fault_of(plan).target} never reached its fault")
    return ended_in_time(attempt.hosts, times[0])


def ends_after_interruption(plan: Plan, attempt: Attempt) -> Conclusion:
    """Every host ended by itself, in the time it had after one was stopped or lost, and failed."""
    fault = fault_of(plan)
    target = attempt.hosts[fault.target]
    ended = f"hosts ended with {[host.exit_code for host in attempt.hosts]}"
    if not target.interrupted_at:
        place = "step 2"
        if fault.kind == LOSE_HOST:
            place = "step 2 with a checkpoint (-- --checkpoint_steps 1 writes some)"
        return Conclusion(FAILED, f"host {target.number} never reached {place}: {ended}")
    if any(host.exit_code == 0 for host in attempt.hosts):
        return Conclusion(FAILED, f"one ended as if nothing had happened: {ended}")
    return ended_in_time(attempt.hosts, target.interrupted_at)


def ended_in_time(hosts: Sequence[Host], start: float) -> Conclusion:
    seconds = [f"host {host.number} after {host.ended_at - start:.1f} s" for host in hosts]
    return passed_if(not any(host.overdue for host in hosts), ", ".join(seconds))


def failure_names_cause(plan: Plan, attempt: Attempt) -> Conclusion:
    """The part of output/failure that SageMaker shows as FailureReason names the rank."""
    fault = fault_of(plan)
    # A host whose only rank was killed has nobody left to write it.
    silent_host = fault.target if fault.kind == KILL_RANK and plan.processes == 1 else None
    writing = [host for host in attempt.hosts if host.index != silent_host] or attempt.hosts
    name = re.compile(rf"\brank\s*:?\s*{fault.target}\b")
    without = []
    for host in writing:
        reason = (host.output("failure") or "")[:FAILURE_REASON]
        if not name.search(reason):
            without.append(host.number)
    if without:
        return Conclusion(FAILED, f"hosts {without} do not name rank {fault.target}")
    return Conclusion(PASSED, cause_line(writing[0].output("failure")))


def fault_of(plan: Plan) -> Fault:
    assert plan.fault, "this check is for a plan with a fault"
    return plan.fault


# The names, in the order of the report.

OF_THE_HOSTS: dict[str, Judge] = {
    "hosts-succeeded": hosts_succeeded,
    "success-or-failure-file": success_or_failure_file,
}
OF_A_JOB: dict[str, Judge] = {
    **OF_THE_HOSTS,
    "world-size": world_size,
    "ranks-complete": ranks_complete,
    "node-ranks": node_ranks,
    "prepare-data-once-per-node": prepare_data_once_per_node,
    "data-divided": data_divided,
    "weights-identical": weights_identical,
    "metrics-identical": metrics_identical,
    "one-writer": one_writer,
    "smddp-contract": smddp_contract,
    "model-predicts": model_predicts,
}
AFTER_A_FAULT: dict[str, Judge] = {
    **OF_THE_HOSTS,
    "ends-in-time": ends_after_fault,
    "failure-names-cause": failure_names_cause,
}
OF_AN_INTERRUPTION: dict[str, Judge] = {"ends-in-time": ends_after_interruption}
