"""Recipe -> run folder: drives the circle of batch, update, publish, observe, evaluate, checkpoint.

What comes in: a `Recipe`. What goes through: `Prompt` -> `Rollout` -> `Verdict` -> `Group`. What goes out: a trained
model, metrics, every rollout, checkpoints to resume from.
"""
