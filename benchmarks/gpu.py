"""What only a GPU can answer, in one command: `make gpu`; some of it a CPU can, in CI.

    python benchmarks/gpu.py                               # all questions; writes docs/measurements_gpu.md
    python benchmarks/gpu.py --only exact faults           # some
    python benchmarks/gpu.py --device cpu --small          # those that a CPU can answer, small

Projects are generated, and train.py runs as it is, in processes: its options, its status, its
output and watch.py's probes are all that is used. Each answer has a name, the question, what is
expected and found, a verdict and seconds. A question that fails does not stop the others; the
status is 1 if an answer is wrong. Several ranks share one GPU as hosts of their own.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
from common import HERE, ROOT, Run, words

LABELS = {"first": "abcdefgh", "second": "ijklmnop", "third": "qrstuvwx"}
LARGE = {
    "hidden": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
GPT2 = {"layers": 12, "width": 768, "heads": 12, "max_length": 1024, "batch_size": 16}
# Dense bfloat16 FLOPs per second, from NVIDIA's data sheets (half of those "with sparsity"), by
# words of the device's name.
PEAKS = {
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "L4": 121e12,
}
BERT = """
import sys, json
from smlightning.testing.checkpoints import write_bert
write_bert(__import__("pathlib").Path(sys.argv[1]), "abcdefghijklmnopqrstuvwxyz", **json.loads(sys.argv[2]))
"""
LLAMA = """
import sys, json, torch
from pathlib import Path
from smlightning.testing.checkpoints import write_letters_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
path = Path(sys.argv[1])
size = write_letters_tokenizer(path, "abcdefghijklmnopqrstuvwxyz")
torch.manual_seed(0)
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=size, bos_token_id=2, eos_token_id=3, **{**shape, **json.loads(sys.argv[2])})
LlamaForCausalLM(config).save_pretrained(path)
tokens = json.loads((path / "tokenizer_config.json").read_text())
(path / "tokenizer_config.json").write_text(json.dumps({**tokens, "eos_token": "[SEP]"}))
"""


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
    ask: Callable[["Lab"], Iterator[Answer]]
    gpus: int  # that it needs


QUESTIONS: dict[str, Question] = {}


def question(text: str, gpus: int = 0) -> Callable[[Any], Any]:
    """Register a function that yields answers, by its name."""

    def register(ask: Any) -> Any:
        QUESTIONS[ask.__name__.replace("_", "-")] = Question(text, ask, gpus)
        return ask

    return register


class Lab:
    """Projects, models and data, made when first used."""

    def __init__(self, folder: Path, on_gpu: bool, small: bool) -> None:
        self.folder, self.on_gpu, self.small = folder, on_gpu, small
        self.runs = 0

    def project(self, task: str) -> Path:
        place = self.folder / task
        if not place.exists():
            common.generate(self.folder, task=task)
            draw = random.Random(0)
            lines = ["text,label"]
            for number in range(3000):
                label = [*LABELS][number % 3]
                text = "".join(draw.choices(LABELS[label], k=draw.randint(1, 120)))
                lines.append(f"{text},{label if draw.random() < 0.9 else 'first'}")
            (place / "texts.csv").write_text("\n".join(lines))
        return place

    def model(self, script: str, **shape: int) -> str:
        """A checkpoint with random weights."""
        text = json.dumps(shape)
        place = self.folder / f"model-{abs(hash((script, text)))}"
        if not place.exists():
            Run(self.project("text-classification"), ["-c", script, str(place), text]).succeed()
        return str(place)

    def start(
        self, task: str, probe: str = "", ranks: int = 1, hosts: bool = True,
        variables: dict[str, str] | None = None, **options: Any,
    ) -> tuple[Run, Path]:  # fmt: skip
        """train.py, with a probe of watch.py's; its output folder, new unless it is an option."""
        self.runs += 1
        project = self.project(task)
        chosen: dict[str, Any] = {"dataset": "texts.csv", "batch_size": 16, "epochs": 99}
        chosen |= {"output_dir": f"outputs{self.runs}", **options}
        if task == "language-model" and "model_name" not in options:
            chosen = {"width": 32, "layers": 2, "heads": 2, "max_length": 64, **chosen}
        program = [common.WATCH, probe] if probe else ["src/train.py"]
        facts = {"FACTS": str(project / "facts.json"), **(variables or {})}
        run = Run(project, [*program, *words(chosen)], ranks, hosts, **facts)
        return run, project / str(chosen["output_dir"])

    def train(self, task: str, *, limit: float = 900, **options: Any) -> tuple[Run, Path]:
        run, output = self.start(task, **options)
        return run.succeed(limit), output

    def facts(self, task: str, probe: str, **options: Any) -> dict[str, Any]:
        """What a probe measured."""
        (self.project(task) / "facts.json").unlink(missing_ok=True)
        self.train(task, probe=probe, **options)
        return json.loads((self.project(task) / "facts.json").read_text())

    def benchmark(self, name: str, *arguments: str) -> Any:
        """What another benchmark writes as JSON."""
        report = self.folder / "report.json"
        command = [sys.executable, str(HERE / name), *arguments, "--json", str(report)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError((ended.stdout + ended.stderr)[-800:])
        found = json.loads(report.read_text())["found"]
        report.unlink()
        return found


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def at_most(name: str, value: float, most: float, unit: str = "", more: str = "") -> Answer:
    return Answer(name, f"≤ {most:g} {unit}", f"{value:.4g} {unit} {more}", value <= most)


# The questions, in the order in which they are asked


@question("Does a run end well: train, test, save, predict, resume (loader workers by default)?")
def whole_run(lab: Lab) -> Iterator[Answer]:
    for task in ("text-classification", "language-model")[: 1 if lab.small else 2]:
        run, output = lab.train(task, max_steps=12, checkpoint_steps=5)
        last = [line for line in run.text().splitlines() if line.startswith("test/")]
        yield Answer(f"{task}: test", "a line test/…", " ".join(last), bool(last))
        program = ["src/predict.py", "abc", "--model_dir", str(output / "model")]
        said = Run(lab.project(task), program).succeed().text().strip()
        yield Answer(f"{task}: predict", "an answer", said[:80], "abc" in said)
        path = str(
            max((output / "checkpoints").glob("*.ckpt"), key=lambda each: each.stat().st_mtime)
        )
        again, _ = lab.train(task, max_steps=16, output_dir=output.name, resume=path)
        lines = [line for line in again.text().splitlines() if line.startswith("resume: ")]
        yield Answer(
            f"{task}: resume", "resume: from …", " ".join(lines), "from" in " ".join(lines)
        )


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
    bert = {"hidden": 64}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "bytelm": ("language-model", {}),
        "bytecnn": ("text-classification", {}),
    }
    precisions = ["32-true"]
    if not lab.small:
        kinds["bert"] = ("text-classification", {"model_name": lab.model(BERT, **bert)})
        kinds["bert LoRA"] = ("text-classification", {**kinds["bert"][1], "lora_rank": 4})
        llama = {"model_name": lab.model(LLAMA), "max_length": 64}
        kinds["llama"] = ("language-model", llama)
        kinds["llama LoRA"] = ("language-model", {**llama, "lora_rank": 4})
        kinds["llama fsdp"] = ("language-model", {**llama, "strategy": "fsdp", "ranks": 2})
        precisions = ["32-true", "bf16-mixed", "16-mixed"] if lab.on_gpu else precisions
    cases = [(kind, precision, False, True) for kind in kinds for precision in precisions]
    if lab.on_gpu:
        cases += [(kind, "bf16-mixed", True, True) for kind in kinds]
        cases += [(kind, "bf16-mixed", False, False) for kind in kinds]
    for kind, precision, compiled, deterministic in cases[: 1 if lab.small else None]:
        task, more = kinds[kind]
        options = {
            **more,
            "precision": precision,
            "compile": compiled,
            "deterministic": deterministic,
        }
        options |= {"max_steps": 9, "checkpoint_steps": 2}
        name = (
            f"{kind} {precision}{' compiled' * compiled}{'' if deterministic else ' free kernels'}"
        )
        fixed = {"variables": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
        try:
            states = [
                common.weights(lab.train(task, **fixed, **options)[1]) for _ in range(2 - lab.small)
            ]
            killed, output = lab.start(task, "is_killed", **fixed, **options)
            killed.wait(600)
            resumed, _ = lab.train(task, output_dir=output.name, **fixed, **options)
            states.append(common.weights(output))
        except Exception as error:  # the other cases are tried all the same
            yield Answer(name, "0 tensors differ", str(error)[-300:], False)
            continue
        parts = [[state["state_dict"], state["optimizer_states"]] for state in states]
        for title, other in zip(
            ("resumed", "once more")[: len(parts) - 1], parts[:0:-1], strict=True
        ):
            count = differing(parts[0], other) + ("resume: from" not in resumed.text())
            judged = count == 0 if deterministic else None
            yield Answer(f"{name}: {title}", "0 tensors differ", str(count), judged)


@question("Has FSDP the numbers of DDP, with 2 and 4 ranks and with replicas?")
def sharded(lab: Lab) -> Iterator[Answer]:
    more = ["--small"] if lab.small else ["--steps", "20"]
    # TF32 and the order of NCCL's sums make more of a difference than a CPU has.
    found = lab.benchmark(
        "sharding.py",
        "--hosts",
        *more,
        *(["--most", "1e-3", "--precision", "32-true"] * lab.on_gpu),
    )
    for each in found:
        differences = f"loss {each['loss']:.1e}, weight {each['weight']:.1e}"
        yield Answer(each["run"], "near", differences, each["near"])
    if lab.on_gpu:
        options: dict[str, Any] = {"compile": True, "gradient_checkpointing": True, "max_steps": 9}
        options |= {"model_name": lab.model(LLAMA), "max_length": 64, "ranks": 2}
        for strategy in ("ddp", "fsdp"):
            run, _ = lab.train("language-model", strategy=strategy, **options)
            ended = run.text().splitlines()[-1]
            yield Answer(f"compile with checkpointing, {strategy}", "ends", ended, True)


@question("Does each rank keep to its own GPU?", gpus=2)
def contexts(lab: Lab) -> Iterator[Answer]:
    ranks = gpus()
    options: dict[str, Any] = {"checkpoint_steps": 5, "max_steps": 100_000, "strategy": "fsdp"}
    run, output = lab.start("language-model", ranks=ranks, hosts=False, log_every=20, **options)
    run.wait_for("step=40")
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    run.kill()
    own = {str(process.pid) for process in run.processes}
    pairs = {tuple(line.split(", ")) for line in lines}
    most = max(sum(pair[1] == pid for pair in pairs) for pid in own)
    yield Answer("GPUs of a process, at most", "1", str(most), most == 1)


@question("Do GPU and host need what `smlightning estimate` says?", gpus=1)
def memory(lab: Lab) -> Iterator[Answer]:
    large = {"model_name": lab.model(BERT, **LARGE), "dataset": "cldr", "batch_size": 32}
    cases = {
        "bytecnn": ("text-classification", {"dataset": "cldr", "batch_size": 64}),
        "BERT-large": ("text-classification", large),
        "bytelm of GPT-2's size": ("language-model", {**GPT2, "dataset": "stdlib"}),
    }
    for name, (task, options) in cases.items():
        facts = lab.facts(task, "memory", max_steps=30, checkpoint_steps=10, **options)
        project = lab.project(task)
        job = project / "job.toml"
        text = re.sub(
            r'(?m)^instance_type = ".*"', 'instance_type = "ml.g6e.xlarge"', job.read_text()
        )
        job.write_text(re.sub(r"(?m)^instance_count = .*", "instance_count = 1", text))
        report = project / "estimate.json"
        program = ["-m", "smlightning", "estimate", "--json", str(report), "--", *words(options)]
        Run(project, program).wait(600)
        total = json.loads(report.read_text())["memory"]["total"]
        share = facts["reserved"] / total
        found = f"{share:.2f} reserved, {facts['allocated'] / total:.2f} allocated of {gib(total)}"
        yield Answer(f"{name}: of the estimate", "0.6 to 1.1 reserved", found, 0.6 <= share <= 1.1)
        host = f"{gib(facts['host'])} resident, {gib(facts['pinned'])} of it pinned"
        yield Answer(f"{name}: of the host", "-", host, None)


@question("How often does the host wait for the GPU in a step, and in a validation batch?")
def waits(lab: Lab) -> Iterator[Answer]:
    for name, facts in profiles(lab, "profile"):
        for kind in ("train", "validation"):
            if f"{kind} waits" in facts:
                yield at_most(f"{name}: {kind}", facts[f"{kind} waits"], 0, "waits")
        kernels = facts["train attention"]
        wrong = [each for each in kernels if "math" in each]
        if kernels:
            found = ", ".join(each[:60] for each in kernels)
            yield Answer(
                f"{name}: attention", "none named math", found, not wrong if lab.on_gpu else None
            )


@question("What does clipping cost in a step?")
def clip(lab: Lab) -> Iterator[Answer]:
    for name, facts in profiles(lab, "clip"):
        cost = f"{facts['clip ms']:.2f} ms"
        yield at_most(f"{name}: clip", facts["train clip operations"], 60, "operations", cost)


def profiles(lab: Lab, probe: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The facts of each model; of a CPU in small only the language model's."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {"bytelm": ("language-model", {})}
    if not lab.small:
        shape = LARGE if lab.on_gpu else {"hidden": 64}
        cases["bert"] = ("text-classification", {"model_name": lab.model(BERT, **shape)})
        cases["bytecnn"] = ("text-classification", {})
    for name, (task, options) in cases.items():
        chosen = {"max_steps": 14, "val_check_steps": 13, "epochs": 1, "num_workers": 0, **options}
        yield name, lab.facts(task, probe, **chosen)


@question(
    "Is a step as fast as a hand-written loop's, and how much of the GPU does it use?", gpus=1
)
def step(lab: Lab) -> Iterator[Answer]:
    bert = [
        "--model_name",
        lab.model(BERT, **LARGE),
        "--batch_size",
        "8",
        "--precision",
        "bf16-mixed",
    ]
    lm = [
        "--task",
        "language-model",
        "--precision",
        "bf16-mixed",
        "--compile",
        "true",
        *words(GPT2),
    ]
    for name, most, more in (
        ("bytecnn", 1.5, []),
        ("BERT-large", 1.03, bert),
        ("bytelm", 1.03, lm),
    ):
        common_part = [
            "--ranks",
            "1",
            "--rounds",
            "2",
            "--steps",
            "100",
            "--variants",
            "train.py",
            "by hand",
        ]
        facts = lab.benchmark("steps_per_second.py", *common_part, *more)["1 rank"]
        value = facts["step by hand"]["ratio"][0]
        spread = common.shown(facts["step by hand"]["ratio"])
        yield at_most(f"{name}: train.py over by hand", value, most, "", spread)
        if name == "bytelm":
            seconds = facts["step train.py"]["ms"] / 1000
            layers, width, length = GPT2["layers"], GPT2["width"], GPT2["max_length"]
            matrices = layers * 12 * width**2 + width * 257
            # PaLM, appendix B: 6 N + 12 · layers · width · length per token
            flops = (6 * matrices + 12 * layers * width * length) * length * GPT2["batch_size"]
            peak = next((PEAKS[each] for each in PEAKS if each in device_name()), None)
            share = f"{flops / seconds / peak:.3f}" if peak else "data sheet not known here"
            yield Answer("bytelm: model FLOPs utilisation", "-", share, None)


@question("How many graphs does torch.compile make for batches of all lengths?", gpus=1)
def compiled(lab: Lab) -> Iterator[Answer]:
    facts = lab.facts("text-classification", "memory", compile=True, max_steps=100)
    yield at_most("bytecnn", facts["graphs"], 4, "graphs")


@question("How long does training wait for a checkpoint?", gpus=1)
def checkpoint(lab: Lab) -> Iterator[Answer]:
    found = lab.benchmark("checkpoints.py", "--width", "2048", "--rounds", "3")["train.py"]
    rate = found["bytes"] / min(found["seconds"]) / 1e9
    yield Answer("1 state", "≥ 5 GB/s", f"{rate:.1f} GB/s of {found['bytes'] / 1e9:.1f}", rate >= 5)


@question("Does a signal end a run in time, with a checkpoint?")
def stop(lab: Lab) -> Iterator[Answer]:
    run, output = lab.start("text-classification", log_every=5)
    run.wait_for("step=5 ")
    began = time.monotonic()
    run.processes[0].send_signal(signal.SIGTERM)
    status = run.wait(60)[0]
    seconds = time.monotonic() - began
    saved = len([*(output / "checkpoints").glob("*.ckpt")])
    found = f"status {status} in {seconds:.1f} s, {saved} checkpoints"
    yield Answer(
        "SIGTERM",
        "status 143 in 10 s, a checkpoint",
        found,
        status == 143 and seconds <= 10 and saved > 0,
    )


FAULTS: dict[
    str, tuple[set[int], str, bool]
] = {  # statuses; rank 0's failure; whether a CPU shows it
    "raises": ({1}, "rank 1 on host algo-2 failed: ValueError: a broken cable", True),
    "aborts": ({1, -6}, "rank 1 on host algo-2", True),
    "is_killed": ({1, -9, -6}, "rank 1 on host algo-2", False),
    "sleeps": ({1, -6}, "rank 1 on host algo-2 stopped taking part", False),
    "is_stopped": ({143}, "", False),
    "out_of_memory": ({1}, "(?i)memory", False),
}


@question("When one of two ranks fails, do both end in time, and does the failure name the cause?")
def faults(lab: Lab) -> Iterator[Answer]:
    for name, (statuses, expected, by_cpu) in FAULTS.items():
        if not lab.on_gpu and not by_cpu:
            continue  # stress.py shows it on gloo
        options: dict[str, Any] = {"hang_seconds": 30, "num_workers": 0, "batch_size": 8}
        run, output = lab.start("text-classification", name, ranks=2, **options)
        run.wait_for("it happens", rank=1)
        began = time.monotonic()
        found = run.wait(150)
        seconds = time.monotonic() - began
        said = run.failure() or run.tail(0)[-200:]
        good = set(found) <= statuses and bool(re.search(expected, said)) and seconds <= 60
        text = f"statuses {found} in {seconds:.0f} s: {said[:400]}"
        yield Answer(name, f"{sorted(statuses)} in 60 s: {expected}", text, good)
        if name == "aborts":
            last = run.failure(1)
            yield Answer("last words of SIGABRT", "its own failure says so", last or "none", None)
        if name == "is_stopped":
            again, _ = lab.start(
                "text-classification", ranks=2, output_dir=output.name, **{**options, "epochs": 1}
            )
            text = f"statuses {again.wait(200)}"
            yield Answer("both resume", "resume: from", text, "resume: from" in again.text())


@question("Does the failure hold NCCL's own reason?", gpus=1)
def nccl_error(lab: Lab) -> Iterator[Answer]:
    wrong = {"variables": {"NCCL_SOCKET_IFNAME": "missing0"}}
    run, _ = lab.start("text-classification", ranks=2, max_steps=5, **wrong)
    statuses = run.wait(300)
    said = run.failure() or run.tail(0)[-300:]
    good = 0 not in statuses and bool(re.search("(?i)no socket interface|missing0", said))
    yield Answer("no such interface", "its name or 'no socket interface'", said[:400], good)


@question("Is a step of 40 s, the same on all ranks, no hang?", gpus=1)
def slow_step(lab: Lab) -> Iterator[Answer]:
    run, _ = lab.start("text-classification", "slow_step", ranks=2, max_steps=9)
    statuses = run.wait(300)
    yield Answer("slow step", "[0, 0]", f"{statuses} {run.failure()[:200]}", statuses == [0, 0])


@question("Does memory fragment over 1,000 batches of different lengths?", gpus=1)
def fragments(lab: Lab) -> Iterator[Answer]:
    model = lab.model(BERT, **{**LARGE, "num_hidden_layers": 6})
    facts = lab.facts("text-classification", "memory", model_name=model, max_steps=1000)
    yield at_most("reserved over allocated", facts["reserved"] / facts["allocated"], 1.5)


@question("How fast are several GPUs, and how do they scale?", gpus=2)
def scaling(lab: Lab) -> Iterator[Answer]:
    speeds = {}
    for ranks in (1, gpus()):
        options = {**GPT2, "dataset": "stdlib", "max_steps": 120, "ranks": ranks, "hosts": False}
        run, _ = lab.train("language-model", log_every=20, **options)
        speeds[ranks] = float(re.findall(r"samples_per_second=([0-9.e+]+)", run.text())[-1])
        for line in re.findall(r".*bus bandwidth.*", run.text()):
            yield Answer(f"bus bandwidth of {ranks}", "as nccl-tests", line, None)
    share = speeds[gpus()] / speeds[1] / gpus()
    yield Answer(f"speed of {gpus()} over 1 each", "≥ 0.85", f"{share:.3f}", share >= 0.85)


def gpus() -> int:
    import torch

    return torch.cuda.device_count()


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0]


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=[*QUESTIONS])
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not gpus():
        print(
            "error: torch sees no GPU; run this on a CUDA machine, or with --device cpu --small",
            file=sys.stderr,
        )
        return 2
    facts = {"device": device_name(), **common.versions()} | (
        {"driver": driver()} if on_gpu else {}
    )
    rows: list[dict[str, Any]] = []

    def report(asked: Question, answer: Answer, seconds: float, verdict: str = "") -> None:
        verdict = verdict or {True: "PASS", False: "FAIL", None: "reported"}[answer.passed]
        found = " ".join(answer.found.split())
        row = {**asdict(answer), "question": asked.text, "found": found, "verdict": verdict}
        rows.append({**row, "seconds": round(seconds, 1)})
        cells = (answer.name, asked.text, answer.expected, found, verdict, f"{seconds:.0f} s")
        print(" | ".join(cells), flush=True)

    with common.folder() as folder:
        lab = Lab(folder, on_gpu, arguments.small)
        for name in arguments.only:
            asked = QUESTIONS[name]
            since = time.monotonic()
            if asked.gpus > (gpus() if on_gpu else 0):
                needs = "needs a GPU" if asked.gpus == 1 else f"needs {asked.gpus} GPUs"
                report(asked, Answer(name, "-", "-", None), 0.0, needs)
                continue
            try:
                for answer in asked.ask(lab):
                    answer = Answer(
                        f"{name}: {answer.name}", answer.expected, answer.found, answer.passed
                    )
                    report(asked, answer, time.monotonic() - since)
                    since = time.monotonic()
            except Exception as error:  # the other questions are asked all the same
                failed = Answer(name, "an answer", f"{type(error).__name__}: {error}", False)
                report(asked, failed, time.monotonic() - since)
    target = arguments.json or ROOT / "build" / "gpu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    if on_gpu:
        lines = ["# What a GPU answers", "", "Written by `make gpu`.", ""]
        lines += [", ".join(f"{key} {value}" for key, value in facts.items()), ""]
        columns = ("name", "expected", "found", "verdict", "seconds")
        lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [
            "| " + " | ".join(str(row[key]).replace("|", "/") for key in columns) + " |"
            for row in rows
        ]
        (ROOT / "docs" / "measurements_gpu.md").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    counts = {
        verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("PASS", "FAIL")
    }
    print(f"{counts['PASS']} PASS, {counts['FAIL']} FAIL, {len(rows)} in all; {target}")
    return int(counts["FAIL"] > 0)


if __name__ == "__main__":
    sys.exit(main())
