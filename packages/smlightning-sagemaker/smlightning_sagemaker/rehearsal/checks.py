"""The checks of an attempt: each turns its evidence into a verdict under a stable name.

A check is a function of the plan and an attempt. The tables at the end give its name, on which
readers of the JSON report rely.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from smlightning_sagemaker.rehearsal.environment import container_environment
from smlightning_sagemaker.rehearsal.evidence import FOR_ALL_NODES, Attempt, Rank
from smlightning_sagemaker.rehearsal.hosts import Host, changed_channels
from smlightning_sagemaker.rehearsal.plan import KILL_RANK, LOSE_HOST, Fault, Plan

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Two ranks are not compared if a larger part of a rank's epoch repeats itself.
RECURRING = 0.1
RECURRED = 3  # batches, of which the last may be the first again without Lightning
SHARED_SAMPLES = 0.5  # largest part of its samples that a rank may share with another
FAILURE_REASON = 1024  # characters of output/failure that SageMaker shows
RESULTS = ("model/", "output/data/")  # below /opt/ml: what SageMaker keeps at a job's end
CHECKPOINTS = "checkpoints/"  # below /opt/ml: what it keeps all the time, the same for all hosts
# Random states of ranks in checkpoints of Hugging Face's Trainer and of Accelerate.
OF_EACH_RANK = re.compile(r"\b(rng_state|random_states)_\d+\.(pth|pkl)$")
LISTED = 3  # files in a detail
FAILED_BEFORE = "the job failed before"
MOUNTED = "mounts this channel read-only"


@dataclass(frozen=True)
class Check:
    """A verdict of the report."""

    name: str
    verdict: str  # PASSED, FAILED or SKIPPED
    detail: str
    hint: str = ""  # what to do, after a failure


class Conclusion(NamedTuple):
    """The verdict of a check, and its reason."""

    verdict: str
    detail: str


Judge = Callable[[Plan, Attempt], Conclusion]


def passed_if(condition: bool, detail: str) -> Conclusion:
    return Conclusion(PASSED if condition else FAILED, detail)


def incomplete(attempt: Attempt, detail: str) -> Conclusion:
    """Evidence is missing: a failure, unless the job failed before."""
    if attempt.succeeded:
        return Conclusion(FAILED, detail)
    return Conclusion(SKIPPED, FAILED_BEFORE)


def judge(plan: Plan, attempt: Attempt) -> list[Check]:
    """Every check of an attempt that was not interrupted, in the order of the report."""
    if plan.fault:
        return verdicts_of(AFTER_A_FAULT, plan, attempt)
    checks = dict(OF_A_JOB)
    if plan.distribution != "smddp":
        del checks["smddp-contract"]
    for name in removed(attempt):
        checks.pop(name, None)
    return verdicts_of(checks, plan, attempt)


def removed(attempt: Attempt) -> list[str]:
    """Checks of what only Lightning's Trainer knows, if no rank had one."""
    plain = attempt.ranks and not any(rank.lightning for rank in attempt.ranks)
    return list(OF_LIGHTNING) if plain else []


def judge_interruption(plan: Plan, interrupted: Attempt) -> list[Check]:
    """Whether an interrupted attempt ended as it should."""
    return verdicts_of({"ends-in-time": ends_after_interruption}, plan, interrupted)


def judge_restart(restarted: Attempt, undisturbed: Attempt, interrupted: Attempt) -> list[Check]:
    """Whether a restarted attempt resumed, and ended like an undisturbed one."""
    verdicts = [with_hint("weights-as-undisturbed", weights_as_undisturbed(restarted, undisturbed))]
    if not removed(restarted):
        resumes = resumes_from_checkpoint(restarted, interrupted)
        verdicts.insert(0, with_hint("resumes-from-checkpoint", resumes))
    return verdicts


def verdicts_of(table: Mapping[str, Judge], plan: Plan, attempt: Attempt) -> list[Check]:
    """The verdict of each check; with a wrong world size, those OF_ONE_WORLD are skipped."""
    verdicts: list[Check] = []
    is_one_world = True
    for name, check in table.items():
        conclusion = check(plan, attempt)
        if name in OF_ONE_WORLD and not is_one_world:
            conclusion = Conclusion(SKIPPED, "see world-size")
        verdicts.append(with_hint(name, conclusion))
        if name == "world-size":
            is_one_world = conclusion.verdict != FAILED
    return verdicts


def with_hint(name: str, conclusion: Conclusion) -> Check:
    """The check, with the first of HINTS for its name and detail if it failed."""
    if conclusion.verdict == FAILED:
        for of_check, words, hint in HINTS:
            if of_check == name and re.search(words, conclusion.detail):
                return Check(name, *conclusion, hint)
    return Check(name, *conclusion)


# How the hosts ended.


def hosts_succeeded(plan: Plan, attempt: Attempt) -> Conclusion:
    """Each host's exit status, and each cause once."""
    details = []
    for host in attempt.hosts:
        end = "killed at the time limit" if host.overdue else f"exit {host.exit_code}"
        details.append(f"host {host.number}: {end}")
    causes = [cause(host) for host in attempt.hosts if host.exit_code]
    details += dict.fromkeys(filter(None, causes))
    changed = {name for host in attempt.hosts for name in changed_channels(plan, host)}
    details += [f"it wrote into {name}, and SageMaker {MOUNTED}" for name in sorted(changed)]
    return passed_if(attempt.succeeded and not changed, "; ".join(details))


def cause(host: Host) -> str:
    """Why a host failed: its failure file's cause, else its log's last error.

    The toolkit finds exceptions of Python only, not the message of a parser of options, and may cut
    an exception after its name, since it reads what ranks print in blocks.
    """
    line = cause_line(host.output("failure"))
    log = host.base / "log.txt"
    if (not line or line.startswith("Command ")) and log.is_file():
        text = log.read_text(errors="replace")
        errors = re.findall(r"^.*[eE]rror: +\S(?:.*:\n)?.*$", text, re.MULTILINE)
        return " ".join(errors[-1].split()) if errors else line
    return line


def cause_line(failure: str | None) -> str:
    """The first line of a failure file that gives a cause, with the next one after a colon."""
    lines = (failure or "").splitlines()
    for number, line in enumerate(lines):
        text = line.strip()
        text = re.sub(r'^(ErrorMessage ")?(\[rank\d+\]:\s*)?', "", text).rstrip('"; ')
        if not re.match(r"(ExitCode|[\w.]+Error:?$|raise |$)", text):
            following = lines[number + 1 : number + 2]
            if text.endswith(":") and following and not following[0].startswith("ExitCode"):
                text = f"{text} {following[0]}"
            return shorten(text, 400, placeholder=" …")
    return ""


# The ranks.


def world_size(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks have the planned world size."""
    expected = f"expected {plan.world_size}"
    if not attempt.ranks:
        return incomplete(attempt, f"no process trained; {expected}")
    sizes = Counter(rank.world_size for rank in attempt.ranks)
    seen = ", ".join(f"{size} on {count} ranks" for size, count in sizes.items())
    return passed_if(set(sizes) == {plan.world_size}, f"{seen}; {expected}")


def ranks_complete(plan: Plan, attempt: Attempt) -> Conclusion:
    """Each rank from 0 to world size - 1 exists once."""
    ranks = [rank.rank for rank in attempt.ranks]
    expected = list(range(plan.world_size))
    some_are_absent = len(set(ranks)) == len(ranks) and set(ranks) < set(expected)
    detail = f"ranks {ranks} of {plan.world_size} trained"
    return incomplete(attempt, detail) if some_are_absent else passed_if(ranks == expected, detail)


def node_ranks(plan: Plan, attempt: Attempt) -> Conclusion:
    """Node and local rank match the host that the process ran on."""
    wrong = []
    for rank in attempt.ranks:
        host = rank.host + 1
        if rank.node_rank != rank.host:
            wrong.append(f"rank {rank.rank} on host {host} reports node rank {rank.node_rank}")
        if rank.rank != rank.host * plan.processes + rank.local_rank:
            wrong.append(f"rank {rank.rank} is on host {host} with local rank {rank.local_rank}")
    if wrong:
        return Conclusion(FAILED, "; ".join(wrong))
    if len(attempt.ranks) < plan.world_size:
        return Conclusion(SKIPPED, "see ranks-complete")
    return Conclusion(PASSED, f"0 to {plan.hosts - 1}")


def main_address(plan: Plan, attempt: Attempt) -> Conclusion:
    """The ranks connected to a host's address: other names lead to another machine on each host."""
    addresses = [host.address for host in attempt.hosts]
    used = sorted({rank.main_address for rank in attempt.ranks} - {""})
    wrong = [address for address in used if address not in addresses]
    if wrong and plan.hosts > 1:
        return Conclusion(FAILED, f"the ranks connected to {wrong[0]}, which is no host's address")
    if not used and plan.world_size > 1:
        return Conclusion(SKIPPED, "no rank was seen to connect to another")
    return Conclusion(PASSED, ", ".join(used) or "one rank connects to no other")


# Their data, and their results.


def prepare_data_once_per_node(plan: Plan, attempt: Attempt) -> Conclusion:
    """Local rank 0 calls prepare_data once per node in each of Trainer's runs.

    Calls for all nodes belong to rank 0. ``test`` on SMDDP finds the data prepared by ``fit``.
    """
    if not any(rank.prepare_data for rank in attempt.ranks):
        return Conclusion(SKIPPED, "no prepare_data was called")
    wrong = []
    per_node = []
    for rank in attempt.ranks:
        for call, times in Counter(rank.prepare_data).items():
            number = rank.rank if call.endswith(FOR_ALL_NODES) else rank.local_rank
            if times > 1 or number != 0:
                who = f"rank {rank.rank} (local rank {rank.local_rank})"
                wrong.append(f"{who} called {call} {times} times")
        if rank.local_rank == 0:
            calls = [call for call in rank.prepare_data if not call.endswith(FOR_ALL_NODES)]
            per_node.append(calls)
    if wrong:
        return Conclusion(FAILED, "; ".join(wrong))
    if any(calls != per_node[0] for calls in per_node):
        return incomplete(attempt, f"calls differ between nodes: {per_node}")
    return Conclusion(PASSED, ", ".join(attempt.ranks[0].prepare_data))


def data_divided(plan: Plan, attempt: Attempt) -> Conclusion:
    """Check that in the first epoch ranks saw different batches and mostly different samples.

    A batch of one sample counts as that sample, since samplers repeat up to world size - 1 samples
    to give every rank the same number.
    """
    if plan.world_size == 1:
        return Conclusion(SKIPPED, "one rank has all of the data")
    ranks = attempt.ranks
    if removed(attempt) and not all(rank.batches for rank in ranks):
        ranks = [replace(rank, batches=rank.inputs, samples=()) for rank in ranks]
    pairs = combinations(ranks, 2)
    compared = [shared_data(one, other, plan.world_size) for one, other in pairs]
    if all(pair is None for pair in compared):
        seen = any(rank.batches for rank in ranks)
        reason = "each rank saw equal batches repeatedly" if seen else "no rank saw a batch"
        return Conclusion(SKIPPED, reason)
    shared = [sentence for sentence in compared if sentence]
    return passed_if(not shared, "; ".join(shared[:3]) or "ranks see different data")


def shared_data(one: Rank, other: Rank, ranks: int) -> str | None:
    """The data that two ranks share and should not; empty: none; None: they cannot be compared."""
    both = f"ranks {one.rank} and {other.rank} both saw"
    batches = batch_digests(one), batch_digests(other)
    samples = one.samples, other.samples
    if may_compare(*batches):
        common = len(set(batches[0]) & set(batches[1]))
        # Accelerate begins anew to give every rank the same number of batches.
        repeated = 0 if one.lightning or min(map(len, batches)) < RECURRED else 1
        if common > repeated:
            return f"{both} {common} of {min(map(len, batches))} batches"
    if may_compare(*samples):
        common = len(set(samples[0]) & set(samples[1]))
        size = min(map(len, samples))
        if common > SHARED_SAMPLES * size and common >= ranks:
            return f"{both} {common} of {size} samples"
    return "" if may_compare(*batches) or may_compare(*samples) else None


def batch_digests(rank: Rank) -> list[str]:
    """Digests of the batches, without those of a single sample."""
    return [digest for digest, size in rank.batches if size != 1]


def may_compare(*seen: Sequence[str]) -> bool:
    """Whether each rank saw data, little of it twice."""
    return all(part and len(set(part)) >= (1 - RECURRING) * len(part) for part in seen)


def weights_identical(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks ended with the same weights, both trained and tested."""
    if any(rank.sharded for rank in attempt.ranks):
        return Conclusion(SKIPPED, "each rank has a shard of the weights")
    if removed(attempt) and attempt.succeeded and not any(rank.steps for rank in attempt.ranks):
        return Conclusion(SKIPPED, "no rank took a step of a torch.optim.Optimizer")
    by_weights: dict[str | None, list[int]] = {}
    for rank in attempt.ranks:
        by_weights.setdefault(rank.weights, []).append(rank.rank)
    if not by_weights or None in by_weights:
        return incomplete(attempt, f"ranks {by_weights.get(None, 'all')} ended without weights")
    details = [f"{weights} on ranks {ranks}" for weights, ranks in by_weights.items()]
    if len(by_weights) > 1:  # ranks that failed did so at different steps
        return incomplete(attempt, "; ".join(details))
    return Conclusion(PASSED, "; ".join(details))


def metrics_identical(plan: Plan, attempt: Attempt) -> Conclusion:
    """All ranks have the same metrics of validation and test."""
    ranks = attempt.ranks
    if not ranks:
        return incomplete(attempt, "no process trained")
    names = sorted({name for rank in ranks for name in rank.metrics})
    if not names:
        return Conclusion(SKIPPED, "none was logged in validation or test")
    differing = []
    for name in names:
        values = [rank.metrics.get(name) for rank in ranks]
        if len({json.dumps(value) for value in values}) > 1:
            differing.append(f"{name}: {values}")
    if differing:
        return incomplete(attempt, "; ".join(differing))
    values_of_all = [f"{name} {value:.4f}" for name, value in ranks[0].metrics.items()]
    return Conclusion(PASSED, ", ".join(values_of_all))


# Their files.


def model_saved(plan: Plan, attempt: Attempt) -> Conclusion:
    """Training wrote a file below /opt/ml/model."""
    return saved("model/", attempt)


def checkpoints_saved(plan: Plan, attempt: Attempt) -> Conclusion:
    """Training wrote a file below /opt/ml/checkpoints, if the job keeps that folder."""
    if "CheckpointConfig" not in plan.request:
        return Conclusion(SKIPPED, "the job keeps no checkpoints")
    return saved(CHECKPOINTS, attempt)


def saved(folder: str, attempt: Attempt) -> Conclusion:
    """Whether a host has files in a folder of /opt/ml; if not, what was written elsewhere."""
    files = [path for host in attempt.hosts for path in files_below(host.base / folder)]
    found = [path for path in files if not path.name.startswith(".")]  # locks, unfinished files
    if found:
        return Conclusion(PASSED, f"{len(found)} files in /opt/ml/{folder}")
    detail = f"/opt/ml/{folder} is empty"
    kept = (*RESULTS, CHECKPOINTS)
    lost = {top_of(name) for rank in attempt.ranks for name in rank.files}
    lost = {name for name in lost if not f"{name}/".startswith(kept)}
    if lost:
        detail += f"; lost with the host: {', '.join(sorted(lost)[:LISTED])}"
    return incomplete(attempt, detail)


def top_of(name: str) -> str:
    """The file or folder of this name in the working directory, or in a folder like /tmp."""
    parts = name.split("/")
    return "/".join(parts[: 3 if name.startswith("/") else 2])


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def one_writer(plan: Plan, attempt: Attempt) -> Conclusion:
    """One rank, on the first host, writes the results, and no two ranks write the same file.

    Checkpoints of all hosts go to one place. Other files are a host's own.
    """
    if not attempt.ranks:
        return incomplete(attempt, "no process trained")
    details = []
    writers = 0
    for rank in attempt.ranks:
        results = [name for name in rank.files if name.startswith(RESULTS)]
        results = [name for name in results if not OF_EACH_RANK.search(name)]
        if results:
            writers += 1
            details.append(f"rank {rank.rank} wrote {len(results)} files, {results[0]} first")
    elsewhere = [
        path.relative_to(attempt.folder).as_posix()
        for host in attempt.hosts[1:]
        for folder in RESULTS
        for path in files_below(host.base / folder)
        if not OF_EACH_RANK.search(path.name)
    ]
    if elsewhere:
        details.append(f"not on host 1: {', '.join(elsewhere[:LISTED])}")
    shared = [sentence for pair in combinations(attempt.ranks, 2) for sentence in same_file(*pair)]
    details += shared[:LISTED]
    right = writers <= 1 and not elsewhere and not shared
    return passed_if(right, "; ".join(details) or "no two ranks wrote the same file")


def same_file(one: Rank, other: Rank) -> list[str]:
    """A sentence on a file that two ranks wrote, if one spoils it for the other."""
    for name in one.files:
        in_one_place = name.startswith(CHECKPOINTS) or one.host == other.host
        if name in other.files and in_one_place and not name.endswith(".lock"):
            return [f"ranks {one.rank} and {other.rank} both wrote {name}"]
    return []


def one_printer(plan: Plan, attempt: Attempt) -> Conclusion:
    """Only one rank of a host prints while it trains."""
    if not attempt.ranks:
        return incomplete(attempt, "no process trained")
    others = [rank.rank for rank in attempt.ranks if rank.local_rank and rank.printed]
    if others:
        return Conclusion(FAILED, f"ranks {others} printed during training, too")
    return Conclusion(PASSED, "at most one rank of each host printed during training")


def smddp_contract(plan: Plan, attempt: Attempt) -> Conclusion:
    """The job makes no call that SMDDP's documentation excludes."""
    violations = "; ".join(attempt.violations)
    return passed_if(not violations, violations or "SMDDP supports every call")


def model_predicts(plan: Plan, attempt: Attempt) -> Conclusion:
    """``predict.py --sample`` answers the project's own sample input with the trained model."""
    host = attempt.hosts[0]
    program = host.base / "code" / "predict.py"
    if not attempt.succeeded:
        return Conclusion(SKIPPED, FAILED_BEFORE)
    if not program.is_file():
        return Conclusion(SKIPPED, "no predict.py in the source folder")
    command = [sys.executable, str(program), "--model_dir", str(host.base / "model"), "--sample"]
    variables = container_environment(plan, attempt.folder, host)
    _stubs, _, packages = variables["PYTHONPATH"].partition(os.pathsep)
    variables["PYTHONPATH"] = packages
    try:
        ended = subprocess.run(
            command,
            cwd=attempt.folder,
            env=variables,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=plan.timeout,  # a busy machine takes minutes
        )
    except subprocess.TimeoutExpired:
        return Conclusion(FAILED, f"predict.py did not answer in {plan.timeout:.0f} s (--timeout)")
    if ended.returncode == 2 and "--sample" in ended.stderr:
        return Conclusion(SKIPPED, "predict.py has no option --sample")
    output = ended.stdout if ended.returncode == 0 else ended.stderr
    lines = output.strip().splitlines() or [""]
    answer = " ".join(lines[-1].split())
    return passed_if(ended.returncode == 0 and bool(answer), answer or "no answer")


# After a restart.


def resumes_from_checkpoint(restarted: Attempt, interrupted: Attempt) -> Conclusion:
    """All ranks began after a checkpoint's step, with something left to train."""
    steps = {rank.first_step for rank in restarted.ranks if rank.first_step is not None}
    if not steps:
        return incomplete(restarted, "no rank took a step after the restart")
    if not any(rank.batches for rank in restarted.ranks):
        hint = "interrupt a longer run: --batches, or -- --epochs"
        return Conclusion(FAILED, f"nothing was left to train when it restarted; {hint}")
    detail = f"after step {' or '.join(map(str, sorted(steps)))}"
    done = max((rank.steps for rank in interrupted.ranks), default=0)
    if done > min(steps):
        detail += f"; the interruption came after step {done}"
    return passed_if(min(steps) > 0, detail)


def weights_as_undisturbed(restarted: Attempt, undisturbed: Attempt) -> Conclusion:
    """The weights are those of the undisturbed job."""
    again = {rank.weights or "none" for rank in restarted.ranks}
    before = {rank.weights or "none" for rank in undisturbed.ranks}
    equal = again == before and len(again) == 1 and "none" not in again
    detail = f"{', '.join(sorted(again))} restarted and {', '.join(sorted(before))} undisturbed"
    return Conclusion(PASSED, detail) if equal else incomplete(restarted, detail)


# After a fault.


def hosts_failed(plan: Plan, attempt: Attempt) -> Conclusion:
    """A rank's fault has to fail every host; before it, none may fail."""
    verdict, detail = hosts_succeeded(plan, attempt)
    if all(rank.fault_at is None for rank in attempt.ranks):
        return Conclusion(verdict, detail)
    if any(host.exit_code == 0 for host in attempt.hosts):
        return Conclusion(FAILED, f"a host succeeded in spite of the fault: {detail}")
    return Conclusion(SKIPPED, f"the fault has to fail them: {detail}")


def ends_after_fault(plan: Plan, attempt: Attempt) -> Conclusion:
    """Every host ended by itself soon after a rank's fault."""
    times = [rank.fault_at for rank in attempt.ranks if rank.fault_at is not None]
    if not times:
        return Conclusion(FAILED, f"rank {fault_of(plan).target} never reached its fault")
    return ended_in_time(attempt.hosts, times[0])


def ends_after_interruption(plan: Plan, attempt: Attempt) -> Conclusion:
    """Every host failed by itself soon after one was stopped or lost."""
    fault = fault_of(plan)
    target = attempt.hosts[fault.target]
    ended = f"hosts ended with {[host.exit_code for host in attempt.hosts]}"
    if not target.interrupted_at:
        place = "step 2"
        if fault.kind == LOSE_HOST:
            place = "step 2 with a checkpoint (-- --checkpoint_steps 1 writes some)"
        detail = f"host {target.number} never reached {place}, or ended right after it: {ended}"
        return Conclusion(FAILED, detail)
    if any(host.exit_code == 0 for host in attempt.hosts):
        return Conclusion(FAILED, f"a host succeeded in spite of the interruption: {ended}")
    return ended_in_time(attempt.hosts, target.interrupted_at)


def ended_in_time(hosts: Sequence[Host], start: float) -> Conclusion:
    seconds = [f"host {host.number} after {host.ended_at - start:.1f} s" for host in hosts]
    return passed_if(not any(host.overdue for host in hosts), ", ".join(seconds))


def failure_names_cause(plan: Plan, attempt: Attempt) -> Conclusion:
    """The part of output/failure that SageMaker shows as FailureReason names the rank."""
    fault = fault_of(plan)
    # A host whose only rank was killed has no process left to write it.
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

OF_A_JOB: dict[str, Judge] = {
    "hosts-succeeded": hosts_succeeded,
    "world-size": world_size,
    "ranks-complete": ranks_complete,
    "node-ranks": node_ranks,
    "main-address": main_address,
    "prepare-data-once-per-node": prepare_data_once_per_node,
    "data-divided": data_divided,
    "weights-identical": weights_identical,
    "metrics-identical": metrics_identical,
    "model-saved": model_saved,
    "checkpoints-saved": checkpoints_saved,
    "one-writer": one_writer,
    "one-printer": one_printer,
    "smddp-contract": smddp_contract,
    "model-predicts": model_predicts,
}
# Only Lightning shows its position, its metrics and when it prepares data.
OF_LIGHTNING = ("prepare-data-once-per-node", "metrics-identical", "resumes-from-checkpoint")
AFTER_A_FAULT: dict[str, Judge] = {
    "hosts-succeeded": hosts_failed,
    "ends-in-time": ends_after_fault,
    "failure-names-cause": failure_names_cause,
}
OF_ONE_WORLD = (
    "ranks-complete",
    "node-ranks",
    "data-divided",
    "weights-identical",
    "metrics-identical",
    "one-writer",
    "one-printer",
)
# Messages of torch, Lightning, Accelerate and Transformers.
NEEDS_A_GPU = (
    "not compiled with CUDA|NVIDIA driver|CUDA GPUs|no GPUs found|visible CUDA devices|CUDA error:|"
    "on a CUDA device but|CUDA generator|without ATen_cuda|not linked with support for|"
    "accelerator device when none|NCCL built in|from the 'CUDA' backend|gpu backend found|"
    "GPUs requested but|CUDAAccelerator` can not run|FSDP is only available on GPU|"
    "requires a GPU|mixed precision requires|support bf16/gpu"
)
# A check, words of its detail, and what to do.
HINTS = (
    (
        "hosts-succeeded",
        "FileNotFoundError|No such file",
        "SageMaker uploads the folder of train.py only: put data into a channel and read "
        'os.environ["SM_CHANNEL_TRAINING"]',
    ),
    (
        "hosts-succeeded",
        MOUNTED,
        'write next to os.environ["SM_MODEL_DIR"] or into a temporary folder, or set '
        'input_mode = "File"',
    ),
    (
        "hosts-succeeded",
        "No module named",
        "add the package to requirements.txt next to train.py (in a project: to "
        "src/requirements.in, then make lock), and install it here, too",
    ),
    (
        "hosts-succeeded",
        NEEDS_A_GPU,
        "the rehearsal has no GPU: use one only if torch.cuda.is_available(), else float32 on "
        "the CPU",
    ),
    (
        "world-size",
        "",
        "let all ranks join one group: torch.distributed.init_process_group(), or in Lightning "
        "Trainer(devices=, num_nodes=, strategy=)",
    ),
    ("ranks-complete", "", "let every rank take every step, and only write and print on rank 0"),
    ("node-ranks", "", "take the ranks from the launcher's variables, unchanged"),
    ("prepare-data-once-per-node", "", "leave the call of prepare_data to Lightning's Trainer"),
    (
        "main-address",
        "",
        "leave MASTER_ADDR and MASTER_PORT as the launcher set them, and use env:// to join",
    ),
    ("data-divided", "", "leave use_distributed_sampler on, or use DistributedSampler"),
    (
        "weights-identical",
        "",
        "train with DistributedDataParallel, or FSDP over all ranks, and with one seed for all",
    ),
    ("metrics-identical", "", "average metrics over the ranks: self.log(..., sync_dist=True)"),
    ("model-saved", "", 'save the model below os.environ["SM_MODEL_DIR"], on rank 0'),
    (
        "checkpoints-saved",
        "",
        'write them below os.environ["SM_MODEL_DIR"] + "/../checkpoints", which is '
        "/opt/ml/checkpoints in a job, or a spot stop loses all steps; for a job that needs none, "
        'set checkpoint_s3 = "" in job.toml',
    ),
    (
        "one-writer",
        "",
        "write results on rank 0; download in prepare_data",
    ),
    ("one-printer", "", "print on rank 0: SageMaker reads metrics from every line of the log"),
    (
        "resumes-from-checkpoint",
        "^after step",
        "pass the newest file below /opt/ml/checkpoints to fit(ckpt_path=)",
    ),
    (
        "weights-as-undisturbed",
        "",
        "seed before the model gets its first weights, and resume the optimizer, the schedule, "
        "the random states and the place in the data",
    ),
    (
        "hosts-succeeded",
        r"(^|; )(\S+: )?[eE]rror: .*(unrecognized|invalid|expected|required|No such option"
        r"|Parser key)",  # as parsers of options begin, and exceptions do not
        "use options that the script has, and give every option of its parser a value: SageMaker "
        "passes each hyperparameter as --name value, and True as a word",
    ),
)
