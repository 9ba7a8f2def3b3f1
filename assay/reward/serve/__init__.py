"""Prompt and completion -> score over HTTP: a sequence classifier behind `assay serve-reward`."""
