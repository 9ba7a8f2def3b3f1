"""Options of the test run."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    default = Path(__file__).parent / "data" / "golden" / "verl-0.9.1.json"
    parser.addoption("--golden", type=Path, default=default, help="reference numbers for tests/golden")


@pytest.fixture(scope="session")
def vllm_served():
    """A vLLM server of our own, started once: see vllm_bench.py."""
    from vllm_bench import TOKENIZER, bench, recipe

    from assay.rollout.vllm.factory import server_engine
    from assay.rollout.vllm.workshop import Workshop

    with bench(lambda model: server_engine(Workshop(recipe(), model, TOKENIZER))) as it:
        yield it


@pytest.fixture(scope="session")
def vllm_embedded():
    """vLLM beside the tests, started once: see vllm_bench.py."""
    from vllm_bench import TOKENIZER, bench, recipe

    from assay.rollout.vllm.factory import embedded_engine

    with bench(lambda model: embedded_engine(recipe(), model, TOKENIZER)) as it:
        yield it
