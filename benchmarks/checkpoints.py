"""How long a checkpoint holds up training, and how many bytes it writes, against the plain way.

    python benchmarks/checkpoints.py --gigabytes 1 --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py --gigabytes 1 --rounds 5 --ranks 2

Plain: a copy into new memory each time, the best weights copied and written with every checkpoint, the file read again
for its checksum. Ours: `checkpoints.writer.CheckpointWriter` as training uses it. In turns, a ratio for each round.

With --ranks the state is divided among processes, as with `--strategy fsdp`, and `ShardWriter` is held against
`CheckpointWriter`, which rank 0 alone uses on the whole state, as with DDP; each is first in every other round. Of both
the slowest rank's seconds, and its seconds of processor time, which other work on the machine changes less. Memory is
that of the last rank, which never has more than its part: what it takes at most beside it, as a multiple of it.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(next(ROOT.glob("{{*}}/vendor/smlightning"))))
from smlightning.training import imports  # noqa: E402

imports.lightning()
import torch  # noqa: E402

from smlightning.checkpoints.position import Position  # noqa: E402
from smlightning.checkpoints.writer import CheckpointWriter, ShardWriter  # noqa: E402
from smlightning.cluster import session  # noqa: E402
from smlightning.files import digest  # noqa: E402
from smlightning.testing.processes import free_port  # noqa: E402


def state(gigabytes: float) -> dict:
    """Weights and AdamW's two moments, so many bytes in all; as many tensors as a model of a few layers has."""
    size = int(gigabytes * 1e9 / 3 / 4 / 40)
    parts = {
        part: {f"layer{i}": torch.randn(size) for i in range(40)}
        for part in ("state_dict", "first", "second")
    }
    return {
        "state_dict": parts["state_dict"],
        "optimizer_states": [parts["first"], parts["second"]],
    }


def plain_copy(tree: object) -> object:
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: plain_copy(value) for key, value in tree.items()}
    return [plain_copy(value) for value in tree]


def divided(gigabytes: float, ranks: int) -> dict:
    """This rank's part of such a state."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (ranks,))

    def divide(tree: object) -> object:
        if isinstance(tree, torch.Tensor):
            return DTensor.from_local(tree, mesh, [Shard(0)])
        if isinstance(tree, dict):
            return {key: divide(value) for key, value in tree.items()}
        return [divide(value) for value in tree]

    return divide(state(gigabytes / ranks))


def memory(name: str) -> int:
    """VmRSS, what this process has in main memory now, or VmHWM, the most it had; bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def slowest(seconds: float) -> float:
    """The most of any rank."""
    most = torch.tensor(seconds)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return most.item()


def compare(rank: int, ranks: int, port: int, folder: Path, gigabytes: float, rounds: int) -> None:
    """What each process does: whole and sharded checkpoints in turns."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    with session.session() as cluster:
        place = f"file://{folder}/group"
        torch.distributed.init_process_group("gloo", place, rank=rank, world_size=ranks)
        before = memory("VmRSS")
        part = divided(gigabytes, ranks)
        held = memory("VmRSS")
        content = state(gigabytes) if rank == 0 else {}
        whole = CheckpointWriter(folder / "whole")
        sharded = ShardWriter(folder / "sharded", cluster, 1, ranks)
        whole.keep_best(content["state_dict"] if rank == 0 else {})
        sharded.keep_best(part["state_dict"])
        ratios, spent_ratios = [], []
        for number in range(rounds + 1):
            waits, spent = [0.0, 0.0], [0.0, 0.0]
            turns = [(0, whole, content), (1, sharded, part)]
            for which, writer, what in turns if number % 2 else reversed(turns):
                torch.distributed.barrier()
                started, processor = time.perf_counter(), time.thread_time()
                if what:
                    writer.write(what, Position(step=number))
                seconds = time.perf_counter() - started, time.thread_time() - processor
                waits[which], spent[which] = map(slowest, seconds)
                writer.finish()
            if number:  # the first takes new memory in both, and writes the best weights
                ratios.append(waits[1] / waits[0])
                spent_ratios.append(spent[1] / spent[0])
            if rank == 0:
                print(
                    f"round {number}: whole {waits[0]:.3f} s ({spent[0]:.3f} of a processor), "
                    f"sharded {waits[1]:.3f} s ({spent[1]:.3f})",
                    flush=True,
                )
        if rank == 0:
            for what, found in (("the waiting", ratios), ("processor time", spent_ratios)):
                middle = statistics.median(found)
                print(f"ratio of {what}: {middle:.3f} ({min(found):.3f} to {max(found):.3f})")
        if rank == ranks - 1:
            size, most = held - before, memory("VmHWM") - held
            print(f"rank {rank}: part {size / 1e9:.3f} GB, {most / size:.2f} times that beside it")


def run_ranks(ranks: int, folder: Path, gigabytes: float, rounds: int) -> int:
    """The status: 1 if a process failed."""
    port = free_port()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=compare, args=(rank, ranks, port, folder, gigabytes, rounds))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return int(any(process.exitcode for process in processes))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    if arguments.ranks > 1:
        status = run_ranks(arguments.ranks, folder, arguments.gigabytes, arguments.rounds)
        shutil.rmtree(folder)
        return status
    content = state(arguments.gigabytes)
    ours = CheckpointWriter(folder / "ours")
    ours.keep_best(content["state_dict"])
    best = plain_copy(content["state_dict"])
    ratios, written = [], []
    print(
        f"{arguments.gigabytes:g} GB of state; seconds that training waits, seconds until the file is there, bytes"
    )
    for number in range(arguments.rounds + 1):
        started = time.perf_counter()
        kept = plain_copy({**content, "best": best})
        blocked = time.perf_counter() - started
        torch.save(kept, folder / "plain.ckpt")
        digest(folder / "plain.ckpt")
        plain = blocked, time.perf_counter() - started
        del kept
        before = {p: p.stat().st_mtime_ns for p in (folder / "ours").glob("*.ckpt")}
        started = time.perf_counter()
        ours.write(content, Position(step=number))
        blocked = time.perf_counter() - started
        ours.finish()
        mine = blocked, time.perf_counter() - started
        new = sum(p.stat().st_size for p in (folder / "ours").glob("*.ckpt") if p not in before)
        size = (folder / "plain.ckpt").stat().st_size
        print(
            f"round {number}{' (first)' if not number else ''}: plain {plain[0]:.3f} {plain[1]:.2f} {size}; "
            f"ours {mine[0]:.3f} {mine[1]:.2f} {new}",
            flush=True,
        )
        if number:  # the first takes new memory in both, and writes the best weights
            ratios.append(mine[0] / plain[0])
            written.append(new / size)
    print(
        f"ratio of the waiting: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"of the bytes: {statistics.median(written):.3f}"
    )
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
