"""Prompt and Rollouts -> Verdicts: built-in verifiers and user functions, in workers that can be killed."""
