"""Good evidence passes every check, and each fault fails its own check."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_rehearsal import GOOD, ended_hosts, good_ranks, small_plan, succeeded
from torch.utils.data import DistributedSampler

from smlightning_sagemaker.rehearsal import checks
from smlightning_sagemaker.rehearsal.checks import FAILED, PASSED, SKIPPED, Check
from smlightning_sagemaker.rehearsal.evidence import Attempt, Rank
from smlightning_sagemaker.rehearsal.hosts import Host
from smlightning_sagemaker.rehearsal.plan import Fault

PLAN = small_plan(2, 2, request={"CheckpointConfig": {}})
NAMES = [
    "hosts-succeeded",
    "world-size",
    "ranks-complete",
    "node-ranks",
    "main-address",
    "prepare-data-once-per-node",
    "data-divided",
    "weights-identical",
    "metrics-identical",
    "model-saved",
    "checkpoints-saved",
    "one-writer",
    "one-printer",
    "model-predicts",
]
FOR_ALL = ["Data.prepare_data in fit", "Model.prepare_data in fit for all nodes"]
# Fault, the check that finds it, and the wrong facts by rank.
FAULTS: list[tuple[str, str, dict[int, dict[str, Any]]]] = [
    ("a rank alone", "world-size", {1: {"world_size": 1}}),
    ("a rank twice", "ranks-complete", {1: {"rank": 0}}),
    ("node 0 everywhere", "node-ranks", {number: {"node_rank": 0} for number in range(4)}),
    ("on every rank", "prepare-data-once-per-node", {3: {"prepare_data": ["x in fit"]}}),
    ("not on node 1", "prepare-data-once-per-node", {2: {"prepare_data": []}}),
    ("for all nodes on node 1", "prepare-data-once-per-node", {2: {"prepare_data": FOR_ALL}}),
    (
        "a batch twice",
        "data-divided",
        {2: {"batches": [*GOOD[2].batches, GOOD[1].batches[3]]}},
    ),
    ("samples twice", "data-divided", {3: {"samples": list(reversed(GOOD[0].samples))}}),
    ("another model", "weights-identical", {2: {"weights": "abd"}}),
    ("a metric of a rank's own", "metrics-identical", {2: {"metrics": {"test/accuracy": 0.4}}}),
    (
        "one metric more",
        "metrics-identical",
        {2: {"metrics": {"test/accuracy": 0.5, "more": 1.0}}},
    ),
    ("two writers", "one-writer", {2: {"files": ["model/more.json"]}}),
    ("a checkpoint twice", "one-writer", {2: {"files": ["checkpoints/1.ckpt"]}}),
    ("a file twice", "one-writer", {n: {"files": ["code/data.csv"]} for n in (2, 3)}),
    ("localhost", "main-address", {2: {"main_address": "localhost"}}),
    ("a printer too many", "one-printer", {3: {"printed": 4}}),
]


def by_name(verdicts: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in verdicts}


def failed(verdicts: list[Check]) -> set[str]:
    return {check.name for check in verdicts if check.verdict == FAILED}


def test_good_evidence_passes_under_stable_names(tmp_path: Path) -> None:
    verdicts = checks.judge(PLAN, succeeded(tmp_path))
    assert [check.name for check in verdicts] == NAMES
    assert [check.verdict for check in verdicts] == [PASSED] * 13 + [SKIPPED], verdicts


@pytest.mark.parametrize("fault, check, changes", FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_each_check_finds_its_fault(
    fault: str, check: str, changes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    verdicts = checks.judge(PLAN, succeeded(tmp_path, good_ranks(changes)))
    assert check in failed(verdicts)


@pytest.mark.parametrize("seen", [0, 2])
def test_a_failure_gives_its_cause_once_and_skips_checks_without_evidence(
    seen: int, tmp_path: Path
) -> None:
    text = "rank 1 on host b failed: ValueError: no room\nmore"
    hosts = ended_hosts(tmp_path, [("failure", text)] * 2)
    ranks = [replace(rank, weights=None, metrics={}, files=[]) for rank in GOOD[:seen]]
    verdicts = checks.judge(PLAN, Attempt(tmp_path, hosts, ranks))
    assert failed(verdicts) == {"hosts-succeeded"}
    detail = by_name(verdicts)["hosts-succeeded"].detail
    assert detail.count("no room") == 1 and "more" not in detail
    names = ["weights-identical"] if seen else ["weights-identical", "one-writer", "one-printer"]
    for name in names:
        check = by_name(verdicts)[name]
        assert (check.verdict, check.detail) == (SKIPPED, checks.FAILED_BEFORE)


@pytest.mark.parametrize(
    "message, log, expected",
    [
        ("RuntimeError\n", "[rank0]: RuntimeError: no room", "[rank0]: RuntimeError: no room"),
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
            "usage: x\ntrain.py: error: unrecognized arguments: --x 2\nx.ChildFailedError: ",
            "train.py: error: unrecognized arguments: --x 2",
        ),
        ("x.ChildFailedError:\n", 'error: Key "lr":\n  Got: a', 'error: Key "lr": Got: a'),
        ("ValueError: Errors in x:\n\tGot: a\n", "", "ValueError: Errors in x: Got: a"),
        ("ValueError: Errors in x:\nExitCode 1\n", "", "ValueError: Errors in x:"),
    ],
)
def test_the_cause_that_the_toolkit_cut_is_in_the_log(
    message: str, log: str, expected: str, tmp_path: Path
) -> None:
    text = f'ExitCode 1\nErrorMessage "{message}"\nCommand "torchrun train.py"'
    hosts = ended_hosts(tmp_path, [("failure", text)])
    (hosts[0].base / "log.txt").write_text(f"{log}\n more\n")
    assert checks.cause(hosts[0]) == expected


def test_files_that_do_not_spoil_each_other_have_several_writers(tmp_path: Path) -> None:
    """Checkpoints of each rank, a file of each host, and locks."""
    changes = {
        number: {"files": [f"checkpoints/rng-{number}", "home/x.lock", f"code/{number % 2}.csv"]}
        for number in range(4)
    }
    attempt = succeeded(tmp_path, good_ranks(changes))
    assert checks.one_writer(PLAN, attempt).verdict == PASSED
    result = attempt.hosts[1].base / "model" / "of-rank-2"
    result.parent.mkdir()
    result.touch()
    outcome = checks.one_writer(PLAN, attempt)
    assert outcome.verdict == FAILED and "host-2/model/of-rank-2" in outcome.detail


@pytest.mark.parametrize(
    "folder, check", [("model", "model-saved"), ("checkpoints", "checkpoints-saved")]
)
def test_files_elsewhere_are_lost(folder: str, check: str, tmp_path: Path) -> None:
    attempt = succeeded(tmp_path, good_ranks({0: {"files": ["code/w.pt", "model/w.pt"]}}))
    (attempt.hosts[0].base / folder / "file").unlink()
    verdicts = checks.judge(PLAN, attempt)
    assert failed(verdicts) == {check}
    assert by_name(verdicts)[check].detail.endswith("is empty; lost with the host: code/w.pt")
    assert by_name(verdicts)[check].hint


@pytest.mark.parametrize(
    "cause, is_gpu",
    [
        ("AssertionError: Torch not compiled with CUDA enabled", True),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", True),
        ("RuntimeError: No CUDA GPUs are available", True),
        ("RuntimeError: PyTorch is not linked with support for cuda devices", True),
        ("RuntimeError: Cannot access accelerator device when none is available.", True),
        ("RuntimeError: Distributed package doesn't have NCCL built in", True),
        ("ValueError: fp16 mixed precision requires a GPU (not 'cpu').", True),
        ("KeyError: 'NCCL'", False),
        ("PermissionError: [Errno 13] Permission denied: '/data/cuda-GPU/a.csv'", False),
    ],
)
def test_only_a_message_of_an_absent_gpu_has_its_hint(cause: str, is_gpu: bool) -> None:
    check = checks.with_hint("hosts-succeeded", checks.Conclusion(FAILED, cause))
    assert ("torch.cuda.is_available()" in check.hint) == is_gpu


@pytest.mark.parametrize(
    "cause, is_option",
    [
        ("host 1: exit 1; train.py: error: unrecognized arguments: --x 2", True),
        ('host 1: exit 1; error: Parser key "lr": Got: a', True),
        ("host 1: exit 1; Error: No such option: --x", True),
        ("host 1: exit 1; ValueError: invalid literal for int()", False),
        ("host 1: exit 1; Fatal error: no room", False),
        ("host 1: exit 1; error: train.csv: No such file or directory", False),
        ("host 1: exit 1; error: No module named rich", False),
    ],
)
def test_only_a_message_of_a_parser_of_options_has_its_hint(cause: str, is_option: bool) -> None:
    check = checks.with_hint("hosts-succeeded", checks.Conclusion(FAILED, cause))
    assert ("options that the script has" in check.hint) == is_option


def test_a_job_that_keeps_no_checkpoints_needs_none(tmp_path: Path) -> None:
    attempt = succeeded(tmp_path)
    for path in tmp_path.rglob("checkpoints/*"):
        path.unlink()
    verdicts = checks.judge(replace(PLAN, request={}), attempt)
    assert by_name(verdicts)["checkpoints-saved"].verdict == SKIPPED and not failed(verdicts)


def plain_ranks(changes: dict[int, dict[str, Any]]) -> list[Rank]:
    """GOOD without Lightning, with other facts of some ranks."""
    plain = {number: {"lightning": False, "metrics": {}} for number in range(4)}
    return good_ranks({number: {**plain[number], **changes.get(number, {})} for number in plain})


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, set()),
        ({2: {"batches": [*GOOD[2].batches, GOOD[1].batches[0]]}}, set()),  # Accelerate's last one
        ({2: {"batches": [*GOOD[2].batches, *GOOD[1].batches[:2]]}}, {"data-divided"}),
        ({2: {"batches": GOOD[1].batches[:1]}}, {"data-divided"}),
        ({2: {"weights": "abd"}}, {"weights-identical"}),
        ({2: {"weights": None}}, {"weights-identical"}),
        ({n: {"weights": None, "sharded": True} for n in range(4)}, set()),
        ({n: {"weights": None, "steps": 0} for n in range(4)}, set()),
        ({n: {"batches": [], "inputs": [["a", 2], ["b", 2]]} for n in range(4)}, {"data-divided"}),
        ({n: {"batches": [], "inputs": [[f"{n}", 2]]} for n in range(4)}, set()),
        ({2: {"files": ["model/checkpoint-4/rng_state_2.pth"]}}, set()),
        ({2: {"files": ["model/rank-2.pth"]}}, {"one-writer"}),
    ],
)
def test_ranks_without_lightning_are_judged_by_what_torch_shows(
    changes: dict[int, dict[str, Any]], found: set[str], tmp_path: Path
) -> None:
    verdicts = checks.judge(PLAN, succeeded(tmp_path, plain_ranks(changes)))
    assert failed(verdicts) == found, verdicts
    left = [name for name in NAMES if name not in checks.OF_LIGHTNING]
    assert [check.name for check in verdicts] == left and len(left) == len(NAMES) - 2


def test_ranks_that_did_not_meet_are_one_failure(tmp_path: Path) -> None:
    changes = {number: {"rank": 0, "world_size": 1, "weights": str(number)} for number in range(4)}
    verdicts = checks.judge(PLAN, succeeded(tmp_path, good_ranks(changes)))
    assert failed(verdicts) == {"world-size"} and by_name(verdicts)["world-size"].hint


def test_a_call_that_smddp_excludes_is_a_failure(tmp_path: Path) -> None:
    plan = replace(PLAN, distribution="smddp")
    attempt = succeeded(tmp_path)
    assert by_name(checks.judge(plan, attempt))["smddp-contract"].verdict == PASSED
    refused = replace(attempt, violations=["SMDDP does not support: ReduceOp"])
    check = by_name(checks.judge(plan, refused))["smddp-contract"]
    assert check.verdict == FAILED and "ReduceOp" in check.detail


@pytest.mark.parametrize(
    "facts, found",
    [
        ({"first_step": 7}, set()),
        ({"first_step": 0}, {"resumes-from-checkpoint"}),
        ({"first_step": 7, "weights": "abd"}, {"weights-as-undisturbed"}),
        ({"first_step": 20, "batches": [], "samples": []}, {"resumes-from-checkpoint"}),
    ],
)
def test_a_restart_resumes_and_ends_with_the_undisturbed_weights(
    facts: dict[str, Any], found: set[str], tmp_path: Path
) -> None:
    undisturbed = succeeded(tmp_path / "undisturbed")
    again = good_ranks({number: facts for number in range(4)})
    restarted = succeeded(tmp_path / "restarted", again)
    verdicts = checks.judge_restart(restarted, undisturbed, replace(undisturbed, ranks=GOOD[:1]))
    assert failed(verdicts) == found
    after = "; the interruption came after step 10"
    assert (after in verdicts[0].detail) == (facts["first_step"] in (0, 7))


@pytest.mark.parametrize("kind", ["stop-host", "lose-host"])
@pytest.mark.parametrize(
    "at, codes, verdict, word",
    [
        (2.0, (1, 143), PASSED, "host 2 after 10.0 s"),
        (2.0, (0, 143), FAILED, "[0, 143]"),
        (0.0, (0, 0), FAILED, "step 2"),
    ],
)
def test_an_interrupted_host_ends_the_others(
    kind: str, at: float, codes: tuple[int, int], verdict: str, word: str, tmp_path: Path
) -> None:
    hosts = [Host(i, "", tmp_path, exit_code=code, ended_at=12.0) for i, code in enumerate(codes)]
    hosts[1].interrupted_at = at
    plan = replace(PLAN, fault=Fault(kind, 1))
    [check] = checks.judge_interruption(plan, Attempt(tmp_path, hosts))
    assert (check.name, check.verdict) == ("ends-in-time", verdict) and word in check.detail


@pytest.mark.parametrize("kind", ["kill-rank", "fail-rank"])
def test_the_cause_is_in_what_sagemaker_shows(kind: str, tmp_path: Path) -> None:
    """The first 1024 characters of output/failure."""
    late = "x" * 1024 + "rank 3"
    hosts = ended_hosts(tmp_path, [("failure", "rank 3 on host b failed"), ("failure", late)])
    for host in hosts:
        host.ended_at = 12.0
    plan = replace(PLAN, fault=Fault(kind, 3))
    verdicts = checks.judge(plan, Attempt(tmp_path, hosts, [replace(GOOD[3], fault_at=2.0)]))
    assert by_name(verdicts)["hosts-succeeded"].verdict == SKIPPED
    ends, cause = by_name(verdicts)["ends-in-time"], by_name(verdicts)["failure-names-cause"]
    assert ends.verdict == PASSED and "10.0 s" in ends.detail
    assert cause.verdict == FAILED and "[2]" in cause.detail


@pytest.mark.parametrize(
    "codes, fault_at, verdict",
    [((1, 1), 2.0, SKIPPED), ((0, 1), 2.0, FAILED), ((1, 1), None, FAILED), ((0, 0), None, PASSED)],
)
def test_a_fault_has_to_fail_every_host(
    codes: tuple[int, int], fault_at: float | None, verdict: str, tmp_path: Path
) -> None:
    hosts = [Host(i, "", tmp_path, exit_code=code) for i, code in enumerate(codes)]
    attempt = Attempt(tmp_path, hosts, [replace(GOOD[3], fault_at=fault_at)])
    assert checks.hosts_failed(PLAN, attempt).verdict == verdict


def saw(*batches: list[list[str]], samples_differ: bool = True) -> list[Rank]:
    """Ranks that saw these batches; the recorder has digests of their samples, or none."""
    ranks = []
    for number, of_rank in enumerate(batches):
        digests = [("+".join(batch), len(batch) if samples_differ else 0) for batch in of_rank]
        samples = [sample for batch in of_rank for sample in batch] if samples_differ else []
        ranks.append(replace(GOOD[0], rank=number, batches=digests, samples=samples))
    return ranks


def sampled(world_size: int, samples: int, batch: int) -> list[Rank]:
    """Ranks behind Lightning's sampler for an ordinary DataLoader, which repeats to be even."""
    of_ranks = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(samples), world_size, rank)  # type: ignore[arg-type]
        order = [str(index) for index in sampler]
        of_ranks.append([order[i : i + batch] for i in range(0, len(order), batch)])
    return saw(*of_ranks)


ABCD, EFGH = [["a", "b"], ["c", "d"]], [["e", "f"], ["g", "h"]]
REPEATED = [["a", "a"]] * 4


@pytest.mark.parametrize(
    "ranks, verdict, word",
    [
        (saw(ABCD, EFGH), PASSED, "different data"),
        (saw(ABCD, EFGH, samples_differ=False), PASSED, "different data"),
        (saw(ABCD, ABCD), FAILED, "ranks 0 and 1 both saw 2 of 2 batches"),
        (
            saw(ABCD, EFGH, ABCD[1:], samples_differ=False),
            FAILED,
            "ranks 0 and 2 both saw 1 of 1 batches",
        ),
        (saw(ABCD, [["d", "b"], ["a", "c"]]), FAILED, "ranks 0 and 1 both saw 4 of 4 samples"),
        (saw(ABCD, [["d", "b"], ["g", "h"]]), PASSED, "different data"),
        (saw(REPEATED, REPEATED), SKIPPED, "equal batches"),
        (saw([], []), SKIPPED, "no rank saw a batch"),
        (GOOD[:1], SKIPPED, "one rank"),
        (sampled(2, 65, 1), PASSED, "different data"),
        (sampled(2, 65, 16), PASSED, "different data"),
        (sampled(4, 66, 8), PASSED, "different data"),
        (sampled(8, 3, 4), PASSED, "different data"),
    ],
)
def test_data_is_divided(ranks: list[Rank], verdict: str, word: str, tmp_path: Path) -> None:
    plan = small_plan(1, len(ranks), request={})
    outcome = checks.data_divided(plan, succeeded(tmp_path, ranks))
    assert outcome.verdict == verdict and word in outcome.detail
