"""Step (rewards, verdict validity, log-probs, all flat) -> token advantages -> Plan (what counts) -> loss.

Pure mathematics: no I/O, no model, no padding. Response tokens of a batch are flat arrays of shape (N,);
``sequence`` (N,) names each token's rollout and ``group`` (S,) each rollout's prompt. Read in this order:
``layout`` (the flat arrays), ``advantage`` (rewards to advantages), ``ratio``, ``loss``, ``kl``,
``correction``, ``aggregation`` (one number per token each), ``objective`` (the assembly that a learner
calls).
"""
