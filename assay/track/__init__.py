"""groups, verdicts, metrics -> what can be looked at: metrics.jsonl, rollouts/, the console, trackers.

``glossary`` says what each metric means and which values are healthy; ``metrics`` and ``rollouts`` write a
run's logs so that a resumed run can roll them back; ``phases`` times a step; ``console`` shows it;
``trackers`` pass it on.
"""
