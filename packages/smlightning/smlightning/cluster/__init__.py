"""The cluster: a process's rank and host, communication and end of ranks, signals.

- `location`: rank, world size, hosts and backend, from the environment: ``Cluster``.
- `session`: the ranks connect, and end together: ``session``, ``current_cluster``.
- `store`: their store: ``RankStore``.
- `exchange`: values that they exchange over it: ``from_rank_0``, ``to_rank_0``.
- `ending`: ends a rank: ``end``, ``exit_now``, ``run``. It needs no torch.
- `strategies`: Lightning's strategies for a cluster: ``ClusterStrategy``, ``OneProcess``.
- `sharding`: FSDP2 as Lightning's strategy: ``ShardedStrategy``, ``gather_weights``.
- `fsdp2`: the calls of FSDP2, which need torch 2.6: ``shard``, ``gather``.
- `blocks`: the modules of a network that it gathers one by one: ``networks``, ``blocks``.
- `shards`: states with tensors that are sharded among the ranks: ``split``, ``join``.
- `smddp`: DDP with SageMaker's data parallel library: ``SmddpStrategy``.
- `collectives`: reductions over the ranks: ``all_sum``, ``any_rank``, ``sum_over_ranks``.
- `watch`: the thread that ends a rank when its main thread does not: ``start``. It needs no torch.
- `signals`: stops a run in order: ``install``, ``defer``. It needs no torch.
- `all_reduce`: a check that the ranks add up numbers correctly: ``verify_all_reduce``.
"""
