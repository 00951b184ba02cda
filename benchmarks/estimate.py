"""Compares `smlightning estimate` with real tensors and files, for several networks.

    OMP_NUM_THREADS=1 python benchmarks/estimate.py        # the table of docs/evidence.md

Networks are made from their configuration; nothing is downloaded. Measured are the bytes of
parameters, gradients, AdamW's state after a step, and the file of a checkpoint. Activations are
what autograd saves for the backward pass (torch.autograd.graph.saved_tensors_hooks), on the CPU,
at the batch and length of the row. tests/tools/test_estimate.py measures main memory.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import common

PROJECT = next(common.ROOT.glob("{{*}}/src")).parent
PATHS = [*common.ROOT.glob("packages/smlightning*"), PROJECT / "src", common.ROOT / "tests/tools"]
sys.path[:0] = map(str, PATHS)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["SMLIGHTNING_PROJECT"] = str(PROJECT)


def written(state: dict[str, Any], optimizer: Any) -> int:
    """Bytes of the file that holds weights and optimizer state."""
    from smlightning.checkpoints import files
    from smlightning.checkpoints.position import Position
    from smlightning.checkpoints.writer import CheckpointWriter

    with common.folder() as folder:
        writer = CheckpointWriter(folder)
        content = {"state_dict": state, "optimizer_states": [optimizer.state_dict()]}
        writer.write(content, Position(step=1))
        writer.finish()
        path = files.newest(folder)
        assert path
        return path.stat().st_size


def errors(
    name: str, make: Callable[[], Any], inputs: Callable[[int], Any], compute: Callable[..., Any],
    rows: int,
) -> str:  # fmt: skip
    """A row of the table: counted bytes, and the estimate's errors in percent."""
    import model_records
    import torch

    from smlightning.outline import outline
    from smlightning_sagemaker.estimate import counting

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


def main() -> None:
    parser = common.parser_of(__doc__)
    parser.add_argument(
        "--tiny", dest="small", action="store_true", help="without networks of 100 M"
    )
    is_small = parser.parse_args().small
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
    rows, length = (8, 128) if is_small else (8, 256)
    configs = {**model_records.TINY, **({} if is_small else model_records.MEDIUM)}
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
