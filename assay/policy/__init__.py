"""Groups -> gradients: the model being trained, its log-probs, its optimizer, its export.

What comes in: `Group`s (prompts, rollouts, verdicts). What goes out: a moved model, and an `Update` that says how.
"""
