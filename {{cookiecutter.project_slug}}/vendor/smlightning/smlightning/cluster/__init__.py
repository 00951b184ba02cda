"""Where a process is in the cluster; how ranks meet, agree, fail and end; signals.

- `location`: rank, world size, hosts and backend, read from the environment: ``Cluster``.
- `session`: ranks meet, fail and end together: ``session``, ``current_cluster``, ``from_rank_0``,
  ``from_all_ranks``.
- `strategies`: Lightning's strategies for a cluster: ``ClusterStrategy``, ``OneProcess``.
- `sharding`: FSDP2 as Lightning's strategy: ``ShardedStrategy``, ``gather_weights``.
- `fsdp2`: FSDP2 itself, which needs torch 2.6: ``shard``, ``gather``.
- `blocks`: the parts of a network that it gathers one by one: ``networks``, ``blocks``.
- `parts`: tensors that lie on the ranks in parts: ``DividedTensor``, ``split``, ``join``.
- `smddp`: the same with SageMaker's data parallel library: ``SmddpStrategy``.
- `collectives`: reductions over the ranks: ``all_sum``, ``any_rank``, ``sum_over_ranks``.
- `signals`: how a process ends: ``begin``, ``run``. It needs no torch.
- `last_words`: the cause in the failure file where native code aborts a process: ``watch``,
  ``note``.
"""
