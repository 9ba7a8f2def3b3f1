"""Assay: reinforcement learning of language models on rewards that a program can verify."""
