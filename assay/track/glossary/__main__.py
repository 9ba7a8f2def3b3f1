"""Prints docs/metrics.md."""

from assay.track.glossary import page

print(page(), end="")
