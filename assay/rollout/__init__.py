"""``Prompt`` (with a ``Sampling``) comes in -> ``Rollout`` goes out, as each one finishes.

``engine`` says what a sampler is; ``native`` is the one that runs in this process on the trainer's own
weights: ``sequence`` (one answer in the making), ``scheduler`` (who runs), ``cache`` (keys and values),
``masks``, ``attention``, ``weights`` (what it samples from), ``runner`` (model calls), ``selfcheck``,
``sampling`` and ``seeds``.
"""
