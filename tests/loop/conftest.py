"""The uninterrupted run, made once."""

from __future__ import annotations

import json

import pytest
from killed_run import in_a_process
from loop_helpers import make_place
from whole_run import Whole, values


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Its folder, and how often each moment came in it."""
    place = make_place(tmp_path_factory.mktemp("whole"))
    assert in_a_process(values(place, "whole"), report=place / "report.json") == 0
    return Whole(place, place / "runs" / "whole", json.loads((place / "report.json").read_text())["seen"])
