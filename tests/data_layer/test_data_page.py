"""Every snippet of the data page runs and prints what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

from assay.data import sources

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_snippets_of_the_data_page() -> None:
    kinds = {name: read for name, read in sources.SOURCES._things.items() if name != "squares"}
    sources.SOURCES._things.pop("squares", None)
    try:
        result = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    finally:
        sources.SOURCES._things.clear()
        sources.SOURCES._things.update(kinds)  # the page registers a source of its own
    assert result.attempted > 20
    assert result.failed == 0
