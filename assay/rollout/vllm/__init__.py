"""``Request`` comes in -> vLLM, in the trainer's process tree or behind HTTP -> ``Rollout`` goes out.

``engine`` is the sampler; it speaks to vLLM through a ``port``: ``embedded`` (vLLM's own asynchronous engine),
``served`` (its token-in, token-out server, started by ``launch`` or ``remote``) or ``disaggregated`` (a pair of those).
``answer`` is one answer in the making; ``delivery``, ``transfer`` and ``parcel`` are the way of the weights,
``placement`` chooses it; ``arguments`` is what vLLM is started with; ``factory`` and ``workshop`` put engines together.
``worker`` and ``lifeline`` run in vLLM's worker processes, ``server`` as the server's.
"""
