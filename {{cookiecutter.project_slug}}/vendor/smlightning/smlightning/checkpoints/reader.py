"""Every rank reads a checkpoint; hosts that lack the file get rank 0's."""

import os
from pathlib import Path
from typing import Any

import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.snapshot import snapshot
from smlightning.cluster import collectives, session
from smlightning.files import digest, ensure_dir

BLOCK = 2**26  # bytes sent at a time


def read(path: Path, checksum: str, scratch: Path) -> dict[str, Any]:
    """A checkpoint's state, the same on every rank. Collective.

    Args:
        path: rank 0 has it; another host may have none, or an outdated file.
        checksum: first digits of its SHA-256.
        scratch: folder for a received file, which is removed as soon as it is mapped into memory.
    """
    cluster = session.current_cluster()
    lacking = torch.zeros(cluster.num_nodes)
    if cluster.local_rank == 0 and cluster.rank != 0 and not _has(path, checksum):
        lacking[cluster.node_rank] = 1
    lacking = collectives.all_sum(lacking)
    receives = bool(lacking[cluster.node_rank])
    received = ensure_dir(scratch) / f".received-{path.name}"
    try:
        if lacking.any():
            _send(path, received, receives)
        state = files.load(received if receives else path)
        collectives.any_rank(False)  # all ranks of a host have mapped the file
    finally:
        received.unlink(missing_ok=True)
    if cluster.device == "cpu":  # else the optimizer would keep the mapped file
        state["optimizer_states"] = snapshot(state.get("optimizer_states", []))
    return state


def _has(path: Path, checksum: str) -> bool:
    return path.is_file() and digest(path).startswith(checksum)


def _send(path: Path, received: Path, receives: bool) -> None:
    """Send rank 0's file to the hosts that lack it, once to each. Collective.

    Args:
        receives: whether this host lacks it; its first rank then writes it to ``received``.
    """
    cluster = session.current_cluster()
    nothing = Path(os.devnull)
    origin = path if cluster.rank == 0 else nothing
    target = received if receives and cluster.local_rank == 0 else nothing
    size = int(collectives.all_sum(torch.tensor(path.stat().st_size if cluster.rank == 0 else 0)))
    with origin.open("rb") as source, target.open("wb") as file:
        for start in range(0, size, BLOCK):
            block: Any = torch.empty(min(BLOCK, size - start), dtype=torch.uint8)
            source.readinto(block.numpy())  # only rank 0's holds anything
            block = block.to(cluster.device)
            torch.distributed.broadcast(block, 0)
            file.write(block.cpu().numpy())
    collectives.any_rank(False)  # it is complete for every rank of its host
