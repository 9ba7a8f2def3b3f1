"""The objective against reference numbers of a peer: ``pytest tests/golden --golden FILE``.

Every entry of the file is compared to 1e-7 in float64. Three things differ on purpose and are not compared:

- What the peer writes into padding for KL values, correction weights and the critic's advantages and returns:
here padding does not exist. Gradients and the other advantages are compared there too: ours are 0. -
``actor/pg_clipfrac`` and ``pg_clipfrac_lower`` of the geometric-mean loss, which count every token outside
the band; the clip shares here count those where the clip takes effect. - A group with one rollout: the peer
gives it its raw reward as advantage, this project 0. No group of the file has one.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from golden_comparison import compare


@pytest.fixture(scope="module")
def content(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads(Path(request.config.getoption("--golden")).read_text())


def leaves(node: Any, path: tuple = ()) -> list[tuple]:
    """Paths of all lists and scalars of numbers beneath ``node``."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, (*path, key))]
    return [path]


def move(content: dict[str, Any], path: tuple, by: float) -> dict[str, Any]:
    """A copy in which one number moved: the first of the entry at ``path``."""
    moved = copy.deepcopy(content)
    holder: Any = moved
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    while isinstance(holder[key], list):
        holder, key = holder[key], 0
    holder[key] += by
    return moved


def test_every_entry_agrees(content: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(content)
    with capsys.disabled():
        print(f"\ngolden: compared {found.numbers} numbers of {found.entries} entries")
    assert not found.differences, "\n".join(found.differences)
    compared_sections = ("advantage", "loss", "kl", "aggregate", "correction")
    assert found.entries >= sum(len(leaves(content[s])) for s in compared_sections) - 2


def test_one_moved_number_fails_wherever_it_is(content: dict[str, Any]) -> None:
    sections = ("advantage", "loss", "kl", "aggregate", "correction")
    paths = [(s, *leaf) for s in sections for leaf in leaves(content[s])]
    tried = [p for p in paths if not (p[1].startswith("geo_mean") and "clipfrac" in str(p[-1]))]
    for path in tried:
        found = compare(move(content, path, 1e-5))
        assert len(found.differences) == 1, (path, found.differences)


@pytest.mark.parametrize("name", ["logp", "old_logp", "ref_logp", "rollout_logp", "values", "advantages_in"])
def test_one_moved_input_fails(content: dict[str, Any], name: str) -> None:
    assert compare(move(content, (name,), 1e-5)).differences


def test_an_unknown_key_is_not_passed_over(content: dict[str, Any]) -> None:
    for section, key in (("loss", "mystery_0.2|token-mean"), ("correction", "mystery_2.0")):
        more = copy.deepcopy(content)
        more[section][key] = next(iter(more[section].values()))
        with pytest.raises(KeyError, match="mystery"):
            compare(more)


def test_parameters_are_read_out_of_the_keys(content: dict[str, Any]) -> None:
    """The same numbers under a key with another parameter are wrong."""
    for section in ("loss", "correction"):
        for key in content[section]:
            other = copy.deepcopy(content)
            name = re.sub(r"[0-9.]+(e-[0-9]+)?", lambda found: f"{float(found[0]) * 1.5:g}", key, count=1)
            other[section] = {name: content[section][key]}
            found = compare(other).differences
            assert found, key
            assert all(difference.startswith(f"{section}.{name}") for difference in found), found


def test_a_file_with_other_rollouts(content: dict[str, Any]) -> None:
    """Without its last group the file's whole-batch numbers change, the group's own do not."""
    keep = [i for i, uid in enumerate(content["uid"]) if uid != content["uid"][-1]]
    rows = {k: [v[i] for i in keep] for k, v in content.items() if isinstance(v, list)}
    own = ("grpo_std", "grpo_mean_only", "rloo", "opo", "grpo_passk")
    kept = {
        kind: {key: [entries[key][i] for i in keep] for key in own} for kind, entries in content["advantage"].items()
    }
    other = {"aggregate_note": content["aggregate_note"], **rows, "advantage": kept}
    found = compare(other)
    assert found.entries == len(own) * len(kept)
    assert not found.differences
