"""How far `smlightning estimate` is off, by network, and why it may be trusted.

    OMP_NUM_THREADS=1 python benchmarks/estimate.py        # a table for docs/evidence.md
    OMP_NUM_THREADS=1 python benchmarks/estimate.py hosts  # main memory: another table

Networks are made from their configuration; nothing is downloaded. Counted bytes are those of real
tensors: of parameters, of gradients and of AdamW's state after a step, and of the file that a
checkpoint's writer wrote. Activations are what autograd saves for the backward pass by torch's own
hooks (torch.autograd.graph.saved_tensors_hooks), on the CPU, at the batch and length of the row;
the estimate counts a fourth of that batch and doubles it, on tensors without numbers.

A host's main memory is estimated of train.py's options, then train.py trains with them and writes
checkpoints: measured is the peak of all its processes (tests/package/launch/host_records.py), some
6 GB for the largest row.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT = next(ROOT.glob("{{*}}/src")).parent
sys.path[:0] = [
    str(PROJECT / "vendor" / "smlightning"),
    str(PROJECT / "src"),
    str(ROOT / "tests" / "package" / "launch"),
]
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["SMLIGHTNING_PROJECT"] = str(PROJECT)
MIB = 2**20
LETTERS = "abcdefgh "


def written(state: dict[str, Any], optimizer: Any) -> int:
    """Bytes of the file that holds weights and optimizer state."""
    from smlightning.checkpoints import files
    from smlightning.checkpoints.position import Position
    from smlightning.checkpoints.writer import CheckpointWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = CheckpointWriter(Path(folder))
        content = {"state_dict": state, "optimizer_states": [optimizer.state_dict()]}
        writer.write(content, Position(step=1))
        writer.finish()
        path = files.newest(Path(folder))
        assert path
        return path.stat().st_size


def errors(
    name: str, make: Callable[[], Any], inputs: Callable[[int], Any], compute: Callable[..., Any],
    rows: int,
) -> str:  # fmt: skip
    """A row of the table: counted bytes, and the estimate's errors in percent."""
    import model_records
    import torch

    from smlightning.launch.estimate import counting
    from smlightning.outline import outline

    record, counted = model_records.activations(make, inputs, compute, rows)
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    compute(net, inputs(2)).backward()
    optimizer.step()
    gradients = counting.bytes_of(each.grad for each in net.parameters() if each.grad is not None)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    parameters = counting.bytes_of(net.parameters())
    state = counting.bytes_of(moments)
    file = written(net.state_dict(), optimizer)
    # The estimate's own, of a network without numbers.
    del optimizer, moments
    with outline():
        empty = make()
    with counting.without_numbers(empty):
        for parameter in empty.parameters():
            parameter.grad = torch.zeros_like(parameter)
        nothing = counting.line(1, 0, 0)
        estimated = counting.sizes_of(
            empty, counting.state_bytes([torch.optim.AdamW(empty.parameters(), fused=True)]),
            nothing, nothing,
        )  # fmt: skip
    sizes = [
        (parameters, estimated.parameter_bytes),
        (gradients, estimated.gradient_bytes),
        (state, estimated.optimizer_bytes),
        (file, estimated.checkpoint_bytes),
        (record, counted),
    ]
    cells = [name]
    for true, guess in sizes:
        cells.append(f"{true / 2**20:,.1f}: {100 * (guess / true - 1):+.1f}")
    return f"| {' | '.join(cells)} |"


def hosts(tiny: bool) -> None:
    """Print the table of main memory."""
    import host_records

    print("| network, strategy, ranks, loader workers | estimated MiB | measured MiB | off % |")
    print("|---|---:|---:|---:|", flush=True)
    steps = {"max_steps": 5, "val_check_steps": 2, "checkpoint_steps": 2}
    short = {"max_steps": 40, "checkpoint_steps": 10}
    rows: list[tuple[str, dict[str, Any], int, str]] = [
        ("byte CNN, 1.1 M", short, 1, ""),
        ("byte CNN, 1.1 M", short, 2, ""),
        ("byte CNN, 1.1 M", {**short, "num_workers": 2}, 1, ""),
    ]
    with tempfile.TemporaryDirectory() as folder:
        if not tiny:
            bert = {**steps, **bert_options(Path(folder)), "batch_size": 4, "max_length": 32}
            llama = {**steps, **llama_options(Path(folder)), "batch_size": 2, "max_length": 64}
            rows += [
                ("BERT, 74 M", bert, 1, ""),
                ("BERT, 74 M", bert, 2, ""),
                ("BERT, 74 M", {**bert, "strategy": "fsdp"}, 2, ""),
                ("Llama, 100 M, LoRA", {**llama, "lora_rank": 8}, 1, "language-model"),
                ("Llama, 100 M, LoRA", {**llama, "lora_rank": 8}, 2, "language-model"),
            ]
        for number, (name, options, ranks, task) in enumerate(rows):
            place = Path(folder) / str(number)
            place.mkdir()
            record = host_records.train(place, options, ranks=ranks, task=task)
            strategy, workers = options.get("strategy", "ddp"), options.get("num_workers", 0)
            sizes = [size / MIB for size in (sum(record.estimated.values()), record.measured)]
            cells = f"{sizes[0]:,.0f} | {sizes[1]:,.0f} | {100 * record.error:+.1f}"
            print(f"| {name}, {strategy}, {ranks}, {workers} | {cells} |", flush=True)
            shutil.rmtree(place)


def bert_options(folder: Path) -> dict[str, Any]:
    """A BERT with random weights, and texts of two classes."""
    from smlightning.testing.checkpoints import write_bert

    table = folder / "texts.csv"
    lines = [f"{text(row)},{LETTERS[row % 2]}" for row in range(200)]
    table.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    model = write_bert(
        folder / "bert", LETTERS, hidden=768, num_hidden_layers=7, num_attention_heads=12,
        intermediate_size=3072, vocab_size=30522,
    )  # fmt: skip
    return {"model_name": model, "dataset": str(table)}


def llama_options(folder: Path) -> dict[str, Any]:
    """A Llama with random weights, and a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from smlightning.testing.checkpoints import write_letters_tokenizer

    lines = folder / "texts.txt"
    lines.write_text("\n".join(text(row) for row in range(300)), encoding="utf-8")
    model = folder / "llama"
    write_letters_tokenizer(model, LETTERS)
    settings = model / "tokenizer_config.json"
    content = {**json.loads(settings.read_text(encoding="utf-8")), "eos_token": "[SEP]"}
    settings.write_text(json.dumps(content), encoding="utf-8")
    config = LlamaConfig(
        vocab_size=32000, hidden_size=768, num_hidden_layers=8, num_attention_heads=12,
        num_key_value_heads=4, intermediate_size=2048, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(model)
    return {"model_name": str(model), "dataset": str(lines)}


def text(row: int) -> str:
    """60 letters, other ones for each row."""
    return "".join(LETTERS[(row * place) % len(LETTERS)] for place in range(3, 63)).strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="without the networks of 100 M and more"
    )
    parser.add_argument("what", nargs="?", choices=("sizes", "hosts"), default="sizes")
    arguments = parser.parse_args()
    if arguments.what == "hosts":
        hosts(arguments.tiny)
        return
    from smlightning.training import imports

    imports.lightning()
    import model_records
    import torch

    from model import ByteCNN

    torch.manual_seed(0)
    print(
        "| network, rows × tokens | parameters | gradients | optimizer | checkpoint | activations |"
    )
    print("|---|---|---|---|---|---|")

    def cnn_inputs(rows: int) -> dict[str, Any]:
        ids = torch.randint(1, 257, (rows, 129))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "target": ids[:, 0] % 30}

    def cnn_loss(net: Any, given: dict[str, Any]) -> Any:
        logits = net(given["input_ids"], given["attention_mask"])
        return torch.nn.functional.cross_entropy(logits, given["target"])

    row = errors("byte CNN, 64 × 129", lambda: ByteCNN(30), cnn_inputs, cnn_loss, 64)
    print(row, flush=True)
    rows, length = (8, 128) if arguments.tiny else (8, 256)
    configs = {**model_records.TINY, **({} if arguments.tiny else model_records.MEDIUM)}
    for name, config in configs.items():
        row = errors(
            f"{name}, {rows} × {length}",
            lambda config=config: model_records.network(config),
            lambda rows, config=config: model_records.batch(config, rows, length),
            model_records.loss,
            rows,
        )
        print(row, flush=True)


if __name__ == "__main__":
    main()
