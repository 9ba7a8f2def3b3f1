"""docs/rewards.md is true: its examples run, and it names every verifier and option."""

from __future__ import annotations

import doctest
from pathlib import Path

from assay.reward.verifier import Factory, verifiers

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


def test_every_verifier_and_option_is_described() -> None:
    text = PAGE.read_text()
    for name in verifiers:
        factory: Factory = verifiers[name]
        assert f"### {name}\n" in text
        section = text.partition(f"### {name}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
        for option in factory.options_type.model_fields:
            assert f"`{option}`" in section, (name, option)


def test_the_examples_run() -> None:
    before = list(verifiers)
    try:
        found = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    finally:  # the page registers an example
        for name in set(verifiers) - set(before):
            del verifiers._things[name]
    assert found.attempted > 10
    assert found.failed == 0
