"""Measures and checks what needs a GPU (`make gpu`); CI runs the part that a CPU can do.

    python benchmarks/gpu.py                               # all questions
    python benchmarks/gpu.py --only exact faults           # some
    python benchmarks/gpu.py --device cpu --small          # those for a CPU, small

Generates projects and runs train.py as it is, in processes of its own; reads status, output and
watch.py's probes. Each answer has what is expected and found, a verdict and seconds; build/gpu.json
holds all. A question that fails does not stop the others; the status is 1 if an
answer is wrong. Ranks that share one GPU are hosts of their own. tests/runtime/gpu has the tests
of single functions.
"""

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
from common import HERE, ROOT, Run, words

Cases = dict[str, dict[str, Any]]  # options by name
LARGE = {"hidden": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE |= {"intermediate_size": 4096}
FIXED_KERNELS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # cuBLAS repeats its numbers only with it


@dataclass(frozen=True)
class Answer:
    """One line of the report; `passed` is None if the value is only reported."""

    name: str
    expected: str
    found: str
    passed: bool | None


BERT = """
import sys, json
from pathlib import Path
from common import LETTERS
from smlightning_sagemaker.testing.checkpoints import write_bert
write_bert(Path(sys.argv[1]), LETTERS, **json.loads(sys.argv[2]))
"""


class Lab:
    """Projects, models and data, made at their first use."""

    def __init__(self, folder: Path, on_gpu: bool, small: bool) -> None:
        self.folder, self.on_gpu, self.small = folder, on_gpu, small
        self.runs = 0

    @functools.cached_property
    def project(self) -> Path:
        place = common.generate(self.folder)
        common.write_words(place / "texts.csv", 1000, 120, right=0.9)
        return place

    def bert(self, **shape: int) -> str:
        """A checkpoint with random weights."""
        text = json.dumps(shape)
        place = self.folder / f"bert-{abs(hash(text))}"
        if not place.exists():
            Run(self.project, ["-c", BERT, str(place), text]).succeed()
        return str(place)

    def start(
        self, probe: str = "", ranks: int = 1, hosts: bool = True,
        variables: dict[str, str] | None = None, **options: Any,
    ) -> tuple[Run, Path]:  # fmt: skip
        """Start train.py with a probe of watch.py; the run, and its output folder."""
        self.runs += 1
        project = self.project
        chosen: dict[str, Any] = {"dataset": "texts.csv", "batch_size": 16, "epochs": 99}
        chosen |= {"output_dir": f"outputs{self.runs}", **options}
        program = [common.WATCH, probe] if probe else ["src/train.py"]
        facts = {"FACTS": str(project / "facts.json"), **(variables or {})}
        run = Run(project, [*program, *words(chosen)], ranks, hosts, **facts)
        return run, project / str(chosen["output_dir"])

    def train(self, *, limit: float = 900, **options: Any) -> tuple[Run, Path]:
        run, output = self.start(**options)
        return run.succeed(limit), output

    def facts(self, probe: str, **options: Any) -> dict[str, Any]:
        """The measurements of a probe."""
        (self.project / "facts.json").unlink(missing_ok=True)
        self.train(probe=probe, **options)
        return json.loads((self.project / "facts.json").read_text())

    def benchmark(self, name: str, *arguments: str) -> Any:
        """The measurements of another benchmark."""
        report = self.folder / "report.json"
        command = [sys.executable, str(HERE / name), *arguments, "--json", str(report)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError((ended.stdout + ended.stderr)[-800:])
        found = json.loads(report.read_text())["found"]
        report.unlink()
        return found


# The questions


def whole_run(lab: Lab) -> Iterator[Answer]:
    """Does a run end well: train, test, save, predict, resume (loader workers by default)?"""
    run, output = lab.train(max_steps=12, checkpoint_steps=5)
    last = [line for line in run.text().splitlines() if line.startswith("test/")]
    yield Answer("test", "a line test/…", " ".join(last), bool(last))
    program = ["src/predict.py", "abc", "--model_dir", str(output / "model")]
    said = Run(lab.project, program).succeed().text()
    yield Answer("predict", "an answer", said[:80], "abc" in said)
    path = max((output / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    run, _ = lab.train(max_steps=16, output_dir=output.name, resume=path)
    found = re.search("^resume: .*", run.text(), re.M)
    line = found[0] if found else ""
    yield Answer("resume", "resume: from …", line, "resume: from" in line)


def exact(lab: Lab) -> Iterator[Answer]:
    """Is a run that was killed and resumed equal to the undisturbed one, bit for bit?"""
    kinds: Cases = {"bytecnn": {}}
    if not lab.small:
        bert = {"model_name": lab.bert(hidden=64)}
        kinds |= {"bert": bert, "bert fsdp": {**bert, "strategy": "fsdp", "ranks": 2}}
    ways = [("32-true", False, True)]  # precision, compile, deterministic
    if lab.on_gpu:
        ways += [("bf16-mixed", False, True), ("16-mixed", False, True), ("bf16-mixed", True, True)]
        ways += [("bf16-mixed", False, False)]
    for kind, more in kinds.items():
        for precision, compiled, deterministic in ways:
            name = f"{kind} {precision}{' compiled' * compiled}{' free' * (not deterministic)}"
            options: dict[str, Any] = {
                "precision": precision,
                "compile": compiled,
                "variables": FIXED_KERNELS,
            }
            options |= {"deterministic": deterministic, "max_steps": 9, "checkpoint_steps": 2}
            options |= more
            try:
                yield from compare_resumed(lab, name, options)
            except Exception as error:  # go on with the other cases
                yield Answer(name, "no difference", str(error)[-300:], False)


def compare_resumed(lab: Lab, name: str, options: dict[str, Any]) -> Iterator[Answer]:
    """Compare a run with the same run again, and with one that is killed and resumed."""

    def state(output: Path) -> list[Any]:
        found = common.checkpoint(output)
        return [found["state_dict"], found["optimizer_states"]]

    def answer(kind: str, output: Path) -> Answer:
        gap = common.difference(whole, state(output))
        passed = gap == 0 if options["deterministic"] else None
        return Answer(f"{name}: {kind}", "no difference", f"{gap:g}", passed)

    whole = state(lab.train(**options)[1])
    if not lab.small:
        yield answer("again", lab.train(**options)[1])
    killed, output = lab.start("is_killed_once_saved", **options)
    killed.wait(600)
    resumed, _ = lab.train(**{**options, "output_dir": output.name})
    if "resume: from" not in resumed.text():
        raise RuntimeError(f"it did not resume: {resumed.tail(0)}")
    yield answer("resumed", output)


def sharded(lab: Lab) -> Iterator[Answer]:
    """Has FSDP the numbers of DDP, with 2 and 4 ranks and with replicas?"""
    more = ["--small"] if lab.small else ["--steps", "20"]
    # The sums' order differs more on a GPU: float32 there, and a wider limit.
    more += ["--most", "1e-3", "--precision", "32-true"] * lab.on_gpu
    for each in lab.benchmark("sharding.py", "--hosts", *more):
        differences = f"loss {each['loss']:.1e}, weight {each['weight']:.1e}"
        yield Answer(each["run"], "near", differences, each["near"])


def waits(lab: Lab) -> Iterator[Answer]:
    """How often does the host wait for the GPU in a step, and in a validation batch?"""
    cases: Cases = {"bytecnn": {}}
    if not lab.small:
        shape = LARGE if lab.on_gpu else {"hidden": 64}
        cases["bert"] = {"model_name": lab.bert(**shape)}
    chosen = {"max_steps": 14, "val_check_steps": 13, "epochs": 1, "num_workers": 0}
    for name, options in cases.items():
        facts = lab.facts("profile", **chosen, **options)
        for kind in ("train", "validation"):
            found = facts[f"{kind} waits"]
            passed = found <= 0 if lab.on_gpu else None
            yield Answer(f"{name}: {kind}", "0 waits", f"{found:.4g} waits", passed)
        found = ", ".join(each[:50] for each in facts["train attention"])
        passed = "math" not in found if lab.on_gpu else None
        yield Answer(f"{name}: attention", "no math kernel", found, passed)


def step(lab: Lab) -> Iterator[Answer]:
    """Is a step as fast as a hand-written loop's, and how much of the GPU is used?"""
    mixed = {"precision": "bf16-mixed"}
    bert = {"model_name": lab.bert(**LARGE), "batch_size": 8, **mixed}
    cases = {"bytecnn": (1.5, {}), "BERT-large": (1.03, bert)}
    for name, (most, options) in cases.items():
        given = ["--rounds", "2", "--steps", "100", "--variants", "by hand", *words(options)]
        facts = lab.benchmark("steps_per_second.py", *given)
        ratio = facts["by hand"]["ratio"]
        found = common.shown(ratio)
        yield Answer(f"{name}: over by hand", f"≤ {most}", found, ratio[0] <= most)


LOST = "rank 1 on host algo-2"
FAULTS: dict[str, tuple[set[int], str, bool]] = {  # statuses; rank 0's failure; shown by a CPU
    "raises": ({1}, rf"{LOST} failed: watch.py:\d+ raise_error: ValueError: a broken cable", True),
    "aborts": ({1, -6}, LOST, True),
    "is_killed": ({1, -9, -6}, LOST, False),  # benchmarks/stress.py has these on gloo
    "sleeps": ({1, -6}, f"no progress for 30 s.*{LOST} was in", False),
    "is_stopped": ({143}, "", False),
    "out_of_memory": ({1}, "(?i)memory", False),
}


def faults(lab: Lab) -> Iterator[Answer]:
    """When one of two ranks fails, do both end in 60 s, and does rank 0 say why?"""
    for name, (statuses, expected, by_cpu) in FAULTS.items():
        if not (lab.on_gpu or by_cpu):
            continue
        run, _ = lab.start(name, ranks=2, hang_seconds=30, batch_size=8)
        run.wait_for("it happens", rank=1)
        began = time.monotonic()
        found, seconds = run.wait(150), time.monotonic() - began
        said = run.failure()
        good = set(found) <= statuses and bool(re.search(expected, said)) and seconds <= 60
        text = f"{found} in {seconds:.0f} s: {said[:300]}"
        yield Answer(name, f"{sorted(statuses)}: {expected}", text, good)


QUESTIONS = {
    "whole-run": whole_run, "exact": exact, "sharded": sharded, "waits": waits,
    "step": step, "faults": faults,
}  # fmt: skip
ONLY_ON_GPU = ("step",)
VERDICTS = {True: "PASS", False: "FAIL", None: "reported"}


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def answers_of(name: str, lab: Lab) -> Iterator[Answer]:
    if name in ONLY_ON_GPU and not lab.on_gpu:
        yield Answer("-", "-", "needs a GPU", None)
        return
    try:
        yield from QUESTIONS[name](lab)
    except Exception as error:  # go on with the other questions
        yield Answer("-", "an answer", f"{type(error).__name__}: {error}", False)


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=[*QUESTIONS])
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif device_name() == "CPU":
        print("error: torch sees no GPU; run it on a CUDA machine, or with --device cpu --small")
        return 2
    rows: list[dict[str, Any]] = []
    with common.folder() as folder:
        lab = Lab(folder, on_gpu, arguments.small)
        for name in arguments.only:
            question, since = QUESTIONS[name].__doc__, time.monotonic()
            print(f"{name}: {question}")
            for answer in answers_of(name, lab):
                seconds, since = time.monotonic() - since, time.monotonic()
                verdict = VERDICTS[answer.passed]
                facts = {"question": question, "verdict": verdict, "seconds": seconds}
                rows.append({**asdict(answer), **facts})
                found = " ".join(answer.found.split())
                cells = (answer.name, answer.expected, found, verdict, f"{seconds:.0f} s")
                print(" | ".join(cells), flush=True)
    target = arguments.json or ROOT / "build" / "gpu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    common.write(target, {"device": device_name(), "rows": rows})
    passed, failed = (sum(row["verdict"] == each for row in rows) for each in ("PASS", "FAIL"))
    print(f"{passed} PASS, {failed} FAIL of {len(rows)} answers; {target}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
