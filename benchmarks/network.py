"""Step time of two ranks on a link of 1 Gbit/s, by how their gradients are compressed.

    python benchmarks/network.py --megabytes 64 --rounds 3     # as root: it makes two network namespaces

The ranks are processes in namespaces of their own, joined by a pair of links that `tc` shapes.
Each round trains with every compression in turn; the ratios are of the medians of a round's
steps. Beside each stands what a model says: the time of a step without communication plus 2 (n -
1) / n times the bytes over the bandwidth, which is what a ring of n ranks sends
(NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"). It knows nothing of communication beside
computation, which makes a step shorter, nor of headers and of copying and compressing gradients,
which make it longer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = next(ROOT.glob("{{*}}/src"))
KINDS = ("none", "fp16", "powersgd")
SHARE = {"none": 1.0, "fp16": 0.5}  # of the bytes; PowerSGD's are few, its computing is not
LINK = """
ip netns add {0}; ip netns add {1}
ip link add eth0 netns {0} type veth peer name eth0 netns {1}
for i in 0 1; do
  name=$(eval echo {pair} | cut -d' ' -f$((i + 1)))
  ip -n $name link set lo up; ip -n $name addr add 10.77.0.$((i + 1))/24 dev eth0; ip -n $name link set eth0 up
  ip netns exec $name tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms
done
"""


def rank(out: str, megabytes: int, rounds: int, steps: int) -> None:
    """One rank: seconds of each step, for each round and compression."""
    sys.path[:0] = [str(SRC), str(SRC.parent / "vendor" / "smlightning")]
    from smlightning.training import imports

    imports.lightning()
    import pytorch_lightning as pl
    import torch

    import dist
    from smlightning.reports import log
    from smlightning.training.buckets import BucketOrder
    from smlightning.training.seeds import StepSeed

    log.quiet()
    dist.POWERSGD_START = 2

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                *[torch.nn.Linear(1024, 1024) for _ in range(megabytes // 4)]
            )

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(torch.randn(8 * 2 * steps, 1024), batch_size=8)

    class Clock(pl.Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_train_batch_end(self, *_: object) -> None:
            self.times.append(time.perf_counter())

    found: list[dict[str, float]] = []
    with dist.session() as cluster:
        model = Model()
        optimizer = model.configure_optimizers()
        seconds = []
        for batch in model.train_dataloader():  # without communication
            started = time.perf_counter()
            optimizer.zero_grad()
            model.training_step(batch, 0).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        alone = statistics.median(seconds[4:])
        for number in range(rounds):
            found.append({"alone": alone, "bytes": sum(p.numel() * 4 for p in model.parameters())})
            for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
                strategy, devices, num_nodes = dist.get_initialization_info(kind)
                clock = Clock()
                trainer = pl.Trainer(
                    accelerator="cpu", strategy=strategy, devices=devices, num_nodes=num_nodes, max_epochs=1,
                    logger=False, callbacks=[StepSeed(0), BucketOrder(), clock], enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0,
                )  # fmt: skip
                trainer.fit(Model())
                seconds = [
                    b - a for a, b in zip(clock.times[4:], clock.times[5:], strict=False)
                ]  # not the first ones
                found[-1][kind] = statistics.median(seconds)
        if cluster.rank == 0:
            Path(out).write_text(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64, help="of gradients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rate", type=float, default=1.0, help="in gbit")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.rank, arguments.megabytes, arguments.rounds, arguments.steps)
        return 0
    if os.name != "posix" or os.geteuid():
        sys.exit(
            "error: network namespaces are made as root; run this as root, on Linux with iproute2."
        )
    names = [f"ddp{os.getpid()}-{i}" for i in range(2)]
    out = tempfile.mkdtemp(prefix="network-") + "/seconds.json"
    try:
        link = LINK.format(*names, pair=" ".join(names), rate=f"{arguments.rate}gbit")
        subprocess.run(["sh", "-ec", link], check=True)
        ranks = []
        for number, name in enumerate(names):
            variables = {
                "RANK": number,
                "WORLD_SIZE": 2,
                "LOCAL_RANK": 0,
                "LOCAL_WORLD_SIZE": 1,
                "MASTER_PORT": 7777,
            }
            env = {**os.environ, **{key: str(value) for key, value in variables.items()}}
            env |= {
                "MASTER_ADDR": "10.77.0.1",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            # Freed memory is kept, as torch keeps a GPU's: else each step's copies cost a page
            # fault every 4 KiB.
            env |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
            command = ["ip", "netns", "exec", name, sys.executable, __file__, "--rank", out]
            for option in ("megabytes", "rounds", "steps"):
                command += [f"--{option}", str(getattr(arguments, option))]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
        if any([process.wait() for process in ranks]):
            return 1
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
    rounds = json.loads(Path(out).read_text())
    bits_per_second = arguments.rate * 1e9
    print(
        f"{arguments.rate:g} gbit, {arguments.megabytes} MB of gradients, 2 ranks, {arguments.rounds} rounds"
    )
    print(f"without communication {1000 * rounds[0]['alone']:.0f} ms/step")
    for kind in KINDS:
        ratios = sorted(found[kind] / found["none"] for found in rounds)
        step = statistics.median(found[kind] for found in rounds)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{kind:9} {1000 * step:7.0f} ms/step  {spread}", end="")
        if kind in SHARE:
            said = (
                rounds[0]["alone"]
                + 2 * (2 - 1) / 2 * rounds[0]["bytes"] * SHARE[kind] * 8 / bits_per_second
            )
            print(f"  model: {1000 * said:.0f} ms, measured {step / said:.2f} of it", end="")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
