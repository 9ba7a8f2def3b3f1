"""A recipe, costs and a number of GPUs -> predicted step time, idle shares, staleness, the best split and regime.

Nothing here trains: a discrete-event simulation runs the loop's own schedule against engines, verifiers and a trainer
that are numbers. Where the numbers come from (measured, given, guessed) is said beside what follows from them.
"""
