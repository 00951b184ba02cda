"""Measures and checks what needs a GPU (`make gpu`); CI runs the part that a CPU can do.

    python benchmarks/gpu.py                               # all questions
    python benchmarks/gpu.py --only exact faults           # some
    python benchmarks/gpu.py --device cpu --small          # those for a CPU, small

Generates projects and runs train.py as it is, in processes of its own; reads status, output and
watch.py's probes. Each answer has a question, what is expected and found, a verdict and seconds;
build/gpu.json holds all. A question that fails does not stop the others; the status is 1 if an
answer is wrong. Ranks that share one GPU are hosts of their own. tests/package/gpu has the tests
of single functions.
"""

import json
import os
import re
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
    """One line of the report; `passed` is None if the value is only reported."""

    name: str
    expected: str
    found: str
    passed: bool | None


@dataclass(frozen=True)
class Question:
    text: str
    ask: Callable[[Lab], Iterator[Answer]]
    gpus: int  # needed


QUESTIONS: dict[str, Question] = {}


def question(text: str, gpus: int = 0) -> Callable[[Any], Any]:
    """Register a function that yields answers, by its name."""

    def register(ask: Any) -> Any:
        QUESTIONS[ask.__name__.replace("_", "-")] = Question(text, ask, gpus)
        return ask

    return register


# The questions, in their order


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
    """The number of tensors and numbers that differ in any bit."""
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
            except Exception as error:  # go on with the other cases
                yield Answer(name, "0 tensors differ", str(error)[-300:], False)


def compare_resumed(lab: Lab, name: str, task: str, options: dict[str, Any]) -> Iterator[Answer]:
    """Compare a run with the same run again, and with one that is killed and resumed."""

    def state(output: Any) -> list[Any]:
        found = common.weights(output)
        return [found["state_dict"], found["optimizer_states"]]

    whole = state(lab.train(task, **options)[1])
    judged = True if options["deterministic"] else None
    if not lab.small:
        count = differing(whole, state(lab.train(task, **options)[1]))
        yield Answer(f"{name}: again", "0 tensors differ", str(count), judged and count == 0)
    killed, output = lab.start(task, "is_killed_once_saved", **options)
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


@question("How often does the host wait for the GPU in a step, and in a validation batch?")
def waits(lab: Lab) -> Iterator[Answer]:
    cases: dict[str, tuple[str, dict[str, Any]]] = {"bytelm": (LANGUAGE, {})}
    if not lab.small:
        shape = LARGE if lab.on_gpu else {"hidden": 64}
        cases["bert"] = (TEXT, {"model_name": lab.model(BERT, **shape)})
        cases["bytecnn"] = (TEXT, {})
    chosen = {"max_steps": 14, "val_check_steps": 13, "epochs": 1, "num_workers": 0}
    for name, (task, options) in cases.items():
        facts = lab.facts(task, "profile", **chosen, **options)
        for kind in ("train", "validation"):
            found = facts[f"{kind} waits"]
            passed = found <= 0 if lab.on_gpu else None
            yield Answer(f"{name}: {kind}", "0 waits", f"{found:.4g} waits", passed)
        found = ", ".join(each[:50] for each in facts["train attention"])
        passed = "math" not in found if lab.on_gpu else None
        yield Answer(f"{name}: attention", "no math kernel", found, passed)


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


LOST = "rank 1 on host algo-2"
FAULTS: dict[str, tuple[set[int], str, bool]] = {  # statuses; rank 0's failure; shown by a CPU
    "raises": ({1}, f"{LOST} failed: ValueError: a broken cable", True),
    "aborts": ({1, -6}, LOST, True),
    "is_killed": ({1, -9, -6}, LOST, False),  # benchmarks/stress.py has these on gloo
    "sleeps": ({1, -6}, f"{LOST} made its last progress", False),
    "is_stopped": ({143}, "", False),
    "out_of_memory": ({1}, "(?i)memory", False),
}


@question("When one of two ranks fails, do both end in 60 s, and does rank 0 say why?")
def faults(lab: Lab) -> Iterator[Answer]:
    for name, (statuses, expected, by_cpu) in FAULTS.items():
        if not (lab.on_gpu or by_cpu):
            continue
        run, _ = lab.start(TEXT, name, ranks=2, hang_seconds=30, batch_size=8)
        run.wait_for("it happens", rank=1)
        began = time.monotonic()
        found, seconds = run.wait(150), time.monotonic() - began
        said = run.failure()
        good = set(found) <= statuses and bool(re.search(expected, said)) and seconds <= 60
        text = f"{found} in {seconds:.0f} s: {said[:300]}"
        yield Answer(name, f"{sorted(statuses)}: {expected}", text, good)


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
    except Exception as error:  # go on with the other questions
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
