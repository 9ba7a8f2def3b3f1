"""``Request`` comes in -> vLLM, in the trainer's process tree or behind HTTP -> ``Rollout`` goes out.

``engine`` is the sampler; it speaks to vLLM through a ``port``: ``embedded`` (vLLM's own asynchronous engine) or
``served`` (its token-in, token-out server, started by ``launch`` or already running). ``answer`` is one answer in the
making, ``transfer`` and ``parcel`` are the way of the weights, ``arguments`` what vLLM is started with. ``worker`` is
imported by vLLM in its worker processes, ``server`` runs as the server's process.
"""
