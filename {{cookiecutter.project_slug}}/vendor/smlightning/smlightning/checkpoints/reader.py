"""Every rank reads a checkpoint; hosts that lack one of its files get it from one that has it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.snapshot import snapshot
from smlightning.cluster import collectives, parts, session
from smlightning.cluster.parts import Shard
from smlightning.files import digest, ensure_dir

BLOCK = 2**26  # bytes sent at a time


@dataclass(frozen=True)
class ShardFiles:
    """The undamaged shards of a folder, on each host."""

    by_node: tuple[frozenset[str], ...] = (frozenset(),)

    @classmethod
    def find(cls, directory: Path) -> "ShardFiles":
        """Verify them, a part on each rank. Collective, without a process group."""
        cluster = session.current_cluster()
        names = files.verified_shards(directory, cluster.local_rank, cluster.local_world_size)
        texts = session.from_all_ranks("shards", json.dumps(names))
        by_node: list[set[str]] = [set() for _ in cluster.hosts]
        for rank, text in enumerate(texts):
            by_node[rank // cluster.local_world_size].update(json.loads(text))
        return cls(tuple(map(frozenset, by_node)))

    @property
    def names(self) -> frozenset[str]:
        """Of those that are on any host."""
        return frozenset().union(*self.by_node)

    def nodes_with(self, name: str) -> list[int]:
        return [node for node, names in enumerate(self.by_node) if name in names]


def read(
    path: Path, checksum: str, scratch: Path, shard_files: ShardFiles, sharded: bool
) -> dict[str, Any]:
    """A checkpoint's state, the same on every rank. Collective.

    Its ``best_weights`` are what the checkpoint's best weights are, or None; without ``sharded``
    only rank 0 has them.

    Args:
        path: rank 0 has it; another host may have none, or an outdated file.
        checksum: first digits of its SHA-256.
        scratch: folder for a received file, which is removed as soon as it is mapped into memory.
        shard_files: of the checkpoint's folder.
        sharded: whether this run divides tensors. Then those of the checkpoint that are divided,
            on however many ranks, are each a `DividedTensor`, else they are tensors.
    """
    cluster = session.current_cluster()
    all_nodes = list(range(cluster.num_nodes))
    state = _load(path, 0, _nodes_without(path, checksum), scratch)
    divided = state.pop(files.DIVIDED, {"shards": [], "best_shards": [], "best": None})
    shards = _load_shards(path, divided["shards"], all_nodes, scratch, shard_files)
    state = parts.join(state, shards)
    nodes = all_nodes if sharded else [0]
    shards = _load_shards(path, divided["best_shards"], nodes, scratch, shard_files)
    keeps_best = sharded or cluster.rank == 0
    best = parts.join(divided["best"], shards) if keeps_best else None
    if state["best_file"] and sharded:
        file = path.with_name(state["best_file"])
        best = _load(file, 0, _nodes_without(file, _checksum(file)), scratch)
    elif state["best_file"] and keeps_best:
        best = files.load(path.with_name(state["best_file"]))
    state["best_weights"] = best
    if not sharded:
        state = parts.whole(state)
    if cluster.device == "cpu" and not sharded:  # else the optimizer would keep the mapped file
        state["optimizer_states"] = snapshot(state.get("optimizer_states", []))
    return state


def read_here(path: Path) -> dict[str, Any]:
    """The same without other ranks: a whole state, of files that all lie in one folder."""

    def shards(names: list[str]) -> list[Shard]:
        return [files.load(path.with_name(name)) for name in names]  # type: ignore[misc]

    state = files.load(path)
    divided = state.pop(files.DIVIDED, {"shards": [], "best_shards": [], "best": None})
    state = parts.join(state, shards(divided["shards"]))
    state["best_weights"] = parts.join(divided["best"], shards(divided["best_shards"]))
    if state["best_file"]:
        state["best_weights"] = files.load(path.with_name(state["best_file"]))
    return parts.whole(state)


def _checksum(path: Path) -> str:
    """What a file's name says of its content."""
    match = files.CHECKSUM.search(path.name)
    assert match
    return match[1]


def _load_shards(
    path: Path, names: list[str], nodes: list[int], scratch: Path, shard_files: ShardFiles
) -> list[Shard]:
    """The shards beside a checkpoint on these nodes; on others none."""
    cluster = session.current_cluster()
    shards: list[Any] = []
    for name in names:
        having = shard_files.nodes_with(name)
        lacking = [node for node in nodes if node not in having]
        if cluster.node_rank in nodes or lacking:
            root = having[0] * cluster.local_world_size
            shards.append(_load(path.with_name(name), root, lacking, scratch))
    return shards if cluster.node_rank in nodes else []


def _nodes_without(path: Path, checksum: str) -> list[int]:
    """The nodes that lack a file that rank 0 has. Collective."""
    cluster = session.current_cluster()
    lacking = torch.zeros(cluster.num_nodes)
    if cluster.local_rank == 0 and cluster.rank != 0 and not _has(path, checksum):
        lacking[cluster.node_rank] = 1
    return collectives.all_sum(lacking).nonzero().flatten().tolist()


def _has(path: Path, checksum: str) -> bool:
    return path.is_file() and digest(path).startswith(checksum)


def _load(path: Path, root: int, lacking: list[int], scratch: Path) -> dict[str, Any]:
    """A file's content, mapped into memory; nodes that lack it get it from rank ``root``.

    Collective where a node lacks it; elsewhere nobody waits.
    """
    if not lacking:
        return files.load(path)
    cluster = session.current_cluster()
    receives = cluster.node_rank in lacking
    received = ensure_dir(scratch) / f".received-{path.name}"
    try:
        _send(path, received, root, receives)
        has_it = receives or path.is_file()
        content = files.load(received if receives else path) if has_it else {}
        collectives.any_rank(False)  # all ranks of a host have mapped the file
    finally:
        received.unlink(missing_ok=True)
    return content


def _send(path: Path, received: Path, root: int, receives: bool) -> None:
    """Send rank ``root``'s file to the hosts that lack it, once to each. Collective.

    Args:
        receives: whether this host lacks it; its first rank then writes it to ``received``.
    """
    cluster = session.current_cluster()
    nothing = Path(os.devnull)
    origin = path if cluster.rank == root else nothing
    target = received if receives and cluster.local_rank == 0 else nothing
    length = path.stat().st_size if cluster.rank == root else 0
    size = int(collectives.all_sum(torch.tensor(length)))
    with origin.open("rb") as source, target.open("wb") as file:
        for start in range(0, size, BLOCK):
            block: Any = torch.empty(min(BLOCK, size - start), dtype=torch.uint8)
            source.readinto(block.numpy())  # only the root's holds anything
            block = block.to(cluster.device)
            torch.distributed.broadcast(block, root)
            file.write(block.cpu().numpy())
    collectives.any_rank(False)  # it is complete for every rank of its host
