"""Options of the test run."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    default = Path(__file__).parent / "data" / "golden" / "verl-0.9.1.json"
    parser.addoption("--golden", type=Path, default=default, help="reference numbers for tests/golden")
