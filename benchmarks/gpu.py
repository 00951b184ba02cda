"""Asks a GPU what only a GPU can answer (`make gpu`); CI asks a CPU what a CPU can.

    python benchmarks/gpu.py                               # all questions
    python benchmarks/gpu.py --only exact faults           # some
    python benchmarks/gpu.py --device cpu --small          # those that a CPU can answer, small

Projects are generated, and train.py runs as it is, in processes: its options, its status, its
output and watch.py's probes are all that is used. Each answer has a name, the question, what is
expected and found, a verdict and seconds; all of it is in build/gpu.json. A question that fails
does not stop the others; the status is 1 if an answer is wrong. Several ranks share one GPU as
hosts of their own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import common
from common import ROOT, Run, words
from lab import BERT, LLAMA, Lab

TEXT, LANGUAGE = "text-classification", "language-model"
LARGE = {"hidden": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE |= {"intermediate_size": 4096}
GPT2 = {"layers": 12, "width": 768, "heads": 12, "max_length": 1024, "batch_size": 16}
# Dense bfloat16 FLOPs per second by NVIDIA's data sheets (half of those "with sparsity").
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "L40S": 362e12}
FIXED_KERNELS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # cuBLAS repeats its numbers only with it


@dataclass(frozen=True)
class Answer:
    """One line of the report; `passed` is None where the value is only reported."""

    name: str
    expected: str
    found: str
    passed: bool | None


@dataclass(frozen=True)
class Question:
    text: str
    ask: Callable[[Lab], Iterator[Answer]]
    gpus: int  # that it needs


QUESTIONS: dict[str, Question] = {}


def question(text: str, gpus: int = 0) -> Callable[[Any], Any]:
    """Register a function that yields answers, by its name."""

    def register(ask: Any) -> Any:
        QUESTIONS[ask.__name__.replace("_", "-")] = Question(text, ask, gpus)
        return ask

    return register


def at_most(name: str, value: float, most: float, unit: str, judged: bool = True) -> Answer:
    passed = value <= most if judged else None
    return Answer(name, f"≤ {most:g}", f"{value:.4g} {unit}", passed)


# The questions, in the order in which they are asked


@question("Does a run end well: train, test, save, predict, resume (loader workers by default)?")
def whole_run(lab: Lab) -> Iterator[Answer]:
    for task in (TEXT, LANGUAGE)[: 1 if lab.small else 2]:
        run, output = lab.train(task, max_steps=12, checkpoint_steps=5)
        last = [line for line in run.text().splitlines() if line.startswith("test/")]
        yield Answer(f"{task}: test", "a line test/…", " ".join(last), bool(last))
        program = ["src/predict.py", "abc", "--model_dir", str(output / "model")]
        said = Run(lab.project(task), program).succeed().text()
        yield Answer(f"{task}: predict", "an answer", said[:80], "abc" in said)
        path = max((output / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
        run, _ = lab.train(task, max_steps=16, output_dir=output.name, resume=path)
        found = re.search("^resume: .*", run.text(), re.M)
        line = found[0] if found else ""
        yield Answer(f"{task}: resume", "resume: from …", line, "resume: from" in line)


def differing(one: Any, other: Any) -> int:
    """How many tensors and numbers differ in any bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return int(not torch.equal(one, other))
    if isinstance(one, dict):
        return sum(differing(one[key], other[key]) for key in one)
    return sum(map(differing, one, other)) if isinstance(one, list | tuple) else int(one != other)


@question("Is a run that was killed and resumed equal to the undisturbed one, bit for bit?")
def exact(lab: Lab) -> Iterator[Answer]:
    kinds: dict[str, tuple[str, dict[str, Any]]] = {"bytelm": (LANGUAGE, {})}
    if not lab.small:
        bert = {"model_name": lab.model(BERT, hidden=64)}
        llama = {"model_name": lab.model(LLAMA), "max_length": 64}
        kinds |= {"bytecnn": (TEXT, {}), "bert": (TEXT, bert), "llama": (LANGUAGE, llama)}
        kinds |= {"bert LoRA": (TEXT, {**bert, "lora_rank": 4})}
        kinds |= {"llama LoRA": (LANGUAGE, {**llama, "lora_rank": 4})}
        kinds |= {"llama fsdp": (LANGUAGE, {**llama, "strategy": "fsdp", "ranks": 2})}
    ways = [("32-true", False, True)]  # precision, compile, deterministic
    if lab.on_gpu:
        ways += [("bf16-mixed", False, True), ("16-mixed", False, True), ("bf16-mixed", True, True)]
        ways += [("bf16-mixed", False, False)]
    for kind, (task, more) in kinds.items():
        for precision, compiled, deterministic in ways:
            name = f"{kind} {precision}{' compiled' * compiled}{' free' * (not deterministic)}"
            options = {
                "precision": precision,
                "compile": compiled,
                "variables": FIXED_KERNELS,
                **more,
            }
            options |= {"deterministic": deterministic, "max_steps": 9, "checkpoint_steps": 2}
            try:
                yield from compare_resumed(lab, name, task, options)
            except Exception as error:  # the other cases are tried all the same
                yield Answer(name, "0 tensors differ", str(error)[-300:], False)


def compare_resumed(lab: Lab, name: str, task: str, options: dict[str, Any]) -> Iterator[Answer]:
    """A run, the same once more, and one that is killed and resumed."""

    def state(output: Any) -> list[Any]:
        found = common.weights(output)
        return [found["state_dict"], found["optimizer_states"]]

    whole = state(lab.train(task, **options)[1])
    judged = True if options["deterministic"] else None
    if not lab.small:
        count = differing(whole, state(lab.train(task, **options)[1]))
        yield Answer(f"{name}: again", "0 tensors differ", str(count), judged and count == 0)
    killed, output = lab.start(task, "is_killed", **options)
    killed.wait(600)
    resumed, _ = lab.train(task, **{**options, "output_dir": output.name})
    count, is_resumed = differing(whole, state(output)), "resume: from" in resumed.text()
    found = f"{count}{'' if is_resumed else ', not resumed'}"
    passed = judged and count == 0 and is_resumed
    yield Answer(f"{name}: resumed", "0 tensors differ", found, passed)


@question("Has FSDP the numbers of DDP, with 2 and 4 ranks and with replicas?")
def sharded(lab: Lab) -> Iterator[Answer]:
    more = ["--small"] if lab.small else ["--steps", "20"]
    # The sums' order differs more on a GPU: float32 there, and a wider limit.
    more += ["--most", "1e-3", "--precision", "32-true"] * lab.on_gpu
    for each in lab.benchmark("sharding.py", "--hosts", *more):
        differences = f"loss {each['loss']:.1e}, weight {each['weight']:.1e}"
        yield Answer(each["run"], "near", differences, each["near"])


@question("Do --compile and --gradient_checkpointing go together on two ranks?", gpus=1)
def compiled_checkpointing(lab: Lab) -> Iterator[Answer]:
    options: dict[str, Any] = {"compile": True, "gradient_checkpointing": True, "max_steps": 9}
    options |= {"model_name": lab.model(LLAMA), "max_length": 64, "ranks": 2}
    for strategy in ("ddp", "fsdp"):
        run, _ = lab.start(LANGUAGE, strategy=strategy, **options)
        statuses = run.wait(600)
        yield Answer(strategy, "[0, 0]", f"{statuses} {run.tail(0)[-200:]}", statuses == [0, 0])


@question("Does each rank keep to its own GPU?", gpus=2)
def contexts(lab: Lab) -> Iterator[Answer]:
    options: dict[str, Any] = {"checkpoint_steps": 5, "log_every": 20, "strategy": "fsdp"}
    run, _ = lab.start(LANGUAGE, ranks=gpus(), hosts=False, **options)
    run.wait_for("step=40")
    lines = smi("--query-compute-apps=pid,gpu_uuid")
    pids = {process.pid for process in run.processes}
    run.kill()
    pairs = {line for line in lines if int(line.split(",")[0]) in pids}
    found = f"{len(pairs)} contexts of {gpus()} ranks"
    yield Answer("contexts", "one of each rank", found, len(pairs) == gpus())


@question("Do GPU and host need what `smlightning estimate` says?", gpus=1)
def memory(lab: Lab) -> Iterator[Answer]:
    large = {"model_name": lab.model(BERT, **LARGE), "batch_size": 32}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "bytecnn": (TEXT, {"dataset": "cldr", "batch_size": 64}),
        "BERT-large": (TEXT, {**large, "dataset": "cldr"}),
        "GPT-2's size": (LANGUAGE, {**GPT2, "dataset": "stdlib"}),
    }
    for name, (task, options) in cases.items():
        facts = lab.facts(task, "memory", max_steps=30, checkpoint_steps=10, **options)
        total = lab.estimate(task, options)["memory"]["total"]
        share = facts["reserved"] / total
        found = (
            f"{share:.2f}, allocated {facts['allocated'] / total:.2f}, of {total / 2**30:.1f} GiB"
        )
        yield Answer(f"{name}: reserved", "0.6 to 1.1 of it", found, 0.6 <= share <= 1.1)
        resident, pinned = facts["host"] / 2**30, facts["pinned"] / 2**30
        found = f"{resident:.1f} GiB resident, {pinned:.1f} of it pinned"
        yield Answer(f"{name}: host", "-", found, None)


def profiles(lab: Lab, probe: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The facts of each model; small, only the language model's."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {"bytelm": (LANGUAGE, {})}
    if not lab.small:
        shape = LARGE if lab.on_gpu else {"hidden": 64}
        cases["bert"] = (TEXT, {"model_name": lab.model(BERT, **shape)})
        cases["bytecnn"] = (TEXT, {})
    chosen = {"max_steps": 14, "val_check_steps": 13, "epochs": 1, "num_workers": 0}
    for name, (task, options) in cases.items():
        yield name, lab.facts(task, probe, **chosen, **options)


@question("How often does the host wait for the GPU in a step, and in a validation batch?")
def waits(lab: Lab) -> Iterator[Answer]:
    for name, facts in profiles(lab, "profile"):
        for kind in ("train", "validation"):
            yield at_most(f"{name}: {kind}", facts[f"{kind} waits"], 0, "waits", lab.on_gpu)
        found = ", ".join(each[:50] for each in facts["train attention"])
        passed = "math" not in found if lab.on_gpu else None
        yield Answer(f"{name}: attention", "none named math", found, passed)


@question("What does clipping launch in a step?")
def clip(lab: Lab) -> Iterator[Answer]:
    for name, facts in profiles(lab, "clip"):
        unit = f"launches, {facts['clip ms']:.2f} ms"
        yield at_most(name, facts["train clip operations"], 60, unit, lab.on_gpu)


@question("Is a step as fast as a hand-written loop's, and how much of the GPU is used?", gpus=1)
def step(lab: Lab) -> Iterator[Answer]:
    mixed = {"precision": "bf16-mixed"}
    bert = {"model_name": lab.model(BERT, **LARGE), "batch_size": 8, **mixed}
    language = {"task": LANGUAGE, "compile": True, **mixed, **GPT2}
    cases = {"bytecnn": (1.5, {}), "BERT-large": (1.03, bert), "bytelm": (1.03, language)}
    for name, (most, options) in cases.items():
        given = ["--ranks", "1", "--rounds", "2", "--steps", "100", *words(options)]
        variants = ["--variants", "train.py", "by hand"]
        facts = lab.benchmark("steps_per_second.py", *given, *variants)["1 rank"]
        ratio = facts["step by hand"]["ratio"]
        found = common.shown(ratio)
        yield Answer(f"{name}: over by hand", f"≤ {most}", found, ratio[0] <= most)
    seconds = facts["step train.py"]["ms"] / 1000  # the language model's
    layers, width, length = GPT2["layers"], GPT2["width"], GPT2["max_length"]
    # PaLM, appendix B: 6 N + 12 · layers · width · length per token, N numbers in matrices
    per_token = 6 * (layers * 12 * width**2 + width * 257) + 12 * layers * width * length
    rate = per_token * length * GPT2["batch_size"] / seconds
    peak = next((PEAKS[each] for each in PEAKS if each in device_name()), None)
    share = f"{rate / peak:.3f} of {peak:.3g}" if peak else "its data sheet is not known here"
    yield Answer("bytelm: model FLOPs", "-", f"{rate:.3g} per second, {share}", None)


@question("How many graphs does torch.compile make for batches of all lengths?", gpus=1)
def compiled(lab: Lab) -> Iterator[Answer]:
    facts = lab.facts(TEXT, "memory", compile=True, max_steps=100)
    yield at_most("bytecnn", facts["graphs"], 4, "graphs")


@question("How long does training wait for a checkpoint?", gpus=1)
def checkpoint(lab: Lab) -> Iterator[Answer]:
    found = lab.benchmark("checkpoints.py", "--width", "2048", "--rounds", "3")["train.py"]
    size = found["bytes"] / 1e9
    rate = size / min(found["seconds"])
    yield Answer(f"{size:.1f} GB", "≥ 5 GB/s", f"{rate:.1f} GB/s", rate >= 5)


@question("Does a signal end a run in time, with a checkpoint?")
def stop(lab: Lab) -> Iterator[Answer]:
    run, output = lab.start(TEXT, log_every=5)
    run.wait_for("step=5 ")
    began = time.monotonic()
    run.processes[0].send_signal(signal.SIGTERM)
    status, seconds = run.wait(60)[0], time.monotonic() - began
    saved = len([*(output / "checkpoints").glob("*.ckpt")])
    found = f"status {status} in {seconds:.1f} s, {saved} checkpoints"
    good = status == 143 and seconds <= 10 and saved > 0
    yield Answer("SIGTERM", "status 143 in 10 s, a checkpoint", found, good)


LOST = "rank 1 on host algo-2"
FAULTS: dict[str, tuple[set[int], str, bool]] = {  # statuses; rank 0's failure; shown by a CPU
    "raises": ({1}, f"{LOST} failed: ValueError: a broken cable", True),
    "aborts": ({1, -6}, LOST, True),
    "is_killed": ({1, -9, -6}, LOST, False),  # benchmarks/stress.py has these on gloo
    "sleeps": ({1, -6}, f"{LOST} stopped taking part", False),
    "is_stopped": ({143}, "", False),
    "out_of_memory": ({1}, "(?i)memory", False),
}


@question("When one of two ranks fails, do both end in 60 s, and does rank 0 say why?")
def faults(lab: Lab) -> Iterator[Answer]:
    for name, (statuses, expected, by_cpu) in FAULTS.items():
        if not (lab.on_gpu or by_cpu):
            continue
        run, output = lab.start(TEXT, name, ranks=2, hang_seconds=30, batch_size=8)
        run.wait_for("it happens", rank=1)
        began = time.monotonic()
        found, seconds = run.wait(150), time.monotonic() - began
        said = run.failure()
        good = set(found) <= statuses and bool(re.search(expected, said)) and seconds <= 60
        text = f"{found} in {seconds:.0f} s: {said[:300]}"
        yield Answer(name, f"{sorted(statuses)}: {expected}", text, good)
        if name == "aborts":
            yield Answer("last words of SIGABRT", "of rank 1", run.failure(1) or "none", None)
        if name == "is_stopped":
            more = {"output_dir": output.name, "batch_size": 8, "epochs": 1}
            again, _ = lab.start(TEXT, ranks=2, hang_seconds=30, **more)
            text, resumed = f"{again.wait(200)}", "resume: from" in again.text()
            yield Answer("both resume", "resume: from", text, resumed)


@question("Does the failure hold NCCL's own reason?", gpus=1)
def nccl_error(lab: Lab) -> Iterator[Answer]:
    wrong = {"NCCL_SOCKET_IFNAME": "missing0"}
    run, _ = lab.start(TEXT, ranks=2, max_steps=5, variables=wrong)
    statuses, said = run.wait(300), run.failure()
    good = 0 not in statuses and bool(re.search("(?i)socket interface|missing0", said))
    yield Answer("no such interface", "'socket interface'", said[:300], good)


@question("Is a step of 40 s, the same on all ranks, no hang?", gpus=1)
def slow_step(lab: Lab) -> Iterator[Answer]:
    run, _ = lab.start(TEXT, "slow_step", ranks=2, max_steps=9)
    statuses = run.wait(300)
    yield Answer("40 s", "[0, 0]", f"{statuses} {run.failure()[:200]}", statuses == [0, 0])


@question("Does memory fragment over 1,000 batches of different lengths?", gpus=1)
def fragments(lab: Lab) -> Iterator[Answer]:
    model = lab.model(BERT, **{**LARGE, "num_hidden_layers": 6})
    facts = lab.facts(TEXT, "memory", model_name=model, max_steps=1000)
    yield at_most("reserved", facts["reserved"] / facts["allocated"], 1.5, "of allocated")


@question("How fast do several GPUs send, and how do they scale?", gpus=2)
def scaling(lab: Lab) -> Iterator[Answer]:
    speeds = {}
    for ranks in (1, gpus()):
        options = {**GPT2, "dataset": "stdlib", "max_steps": 120, "ranks": ranks, "hosts": False}
        text = lab.train(LANGUAGE, log_every=20, **options)[0].text()
        speeds[ranks] = float(re.findall(r"samples_per_second=([0-9.e+]+)", text)[-1])
        for line in re.findall(r".*bus bandwidth.*", text):
            yield Answer("bandwidth", "as nccl-tests", line, None)
    share = speeds[gpus()] / speeds[1] / gpus()
    yield Answer(f"1 to {gpus()} GPUs", "≥ 0.85", f"{share:.3f}", share >= 0.85)


def gpus() -> int:
    import torch

    return torch.cuda.device_count()


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def smi(query: str) -> list[str]:
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def answers_of(name: str, lab: Lab) -> Iterator[tuple[Answer, str]]:
    """Each answer to a question with its verdict."""
    asked = QUESTIONS[name]
    if asked.gpus > gpus():
        needed = "a GPU" if asked.gpus == 1 else f"{asked.gpus} GPUs"
        yield Answer(name, "-", "-", None), f"needs {needed}"
        return
    try:
        for answer in asked.ask(lab):
            verdict = {True: "PASS", False: "FAIL", None: "reported"}[answer.passed]
            yield replace(answer, name=f"{name}: {answer.name}"), verdict
    except Exception as error:  # the other questions are asked all the same
        yield Answer(name, "an answer", f"{type(error).__name__}: {error}", False), "FAIL"


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=[*QUESTIONS])
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not gpus():
        print("error: torch sees no GPU; run it on a CUDA machine, or with --device cpu --small")
        return 2
    drivers = smi("--query-gpu=driver_version") if on_gpu else []
    rows: list[dict[str, Any]] = []
    with common.folder() as folder:
        lab = Lab(folder, on_gpu, arguments.small)
        for name in arguments.only:
            since = time.monotonic()
            for answer, verdict in answers_of(name, lab):
                seconds, since = time.monotonic() - since, time.monotonic()
                found, text = " ".join(answer.found.split()), QUESTIONS[name].text
                row = {**asdict(answer), "question": text, "found": found, "verdict": verdict}
                rows.append({**row, "seconds": round(seconds, 1)})
                cells = (answer.name, text, answer.expected, found, verdict, f"{seconds:.0f} s")
                print(" | ".join(cells), flush=True)
    target = arguments.json or ROOT / "build" / "gpu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    facts = {"device": device_name(), "drivers": drivers, **common.versions(), "rows": rows}
    target.write_text(json.dumps(facts, indent=1, ensure_ascii=False))
    passed, failed = (sum(row["verdict"] == each for row in rows) for each in ("PASS", "FAIL"))
    print(f"{passed} PASS, {failed} FAIL of {len(rows)} answers; {target}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
