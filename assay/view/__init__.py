"""a run folder (metrics.jsonl, evals.jsonl, rollouts/, summary.json) -> what a person reads.

``show`` prints completions with their verdicts and advantages; ``report`` writes the self-contained
report.html.
"""
