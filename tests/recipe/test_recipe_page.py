"""docs/recipe.md is what the schema says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from assay.recipe.keys import schema_keys
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS
from assay.recipe.reference import PAGE, page

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_current():
    assert PAGE == ROOT / "docs" / "recipe.md"
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m assay.recipe.reference"


def test_every_key_and_preset_is_on_it():
    text, own = page(), "preset`, `profile"
    for key in schema_keys().values():
        if key.section is None:
            section, _, name = key.path.rpartition(".")
            table = text.split(f"## `{section or own}`\n")[1].split("\n## ")[0]
            assert f"| `{name}` |" in table, key.path
    for name in PRESETS:
        assert f"### `{name}`" in text


def test_types_bounds_and_defaults_are_in_words():
    text = page()
    assert "| `learning_rate` | number > 0 | `1e-06` | Peak learning rate. |" in text
    assert "| `max_grad_norm` | number > 0, or null | `1` |" in text
    assert "| `targets` | text or list of text | `all-linear` |" in text
    assert "| `parts` | list of sections | `[{verifier: number}]` |" in text
    assert "| `verifier` | text | required |" in text
    assert '| `suffix` | text | `""` |' in text


def test_the_first_example_is_a_recipe(tmp_path):
    found = re.search(r"```yaml\n(.*?)```", page(), re.DOTALL)
    assert found is not None
    path = tmp_path / "example.yaml"
    path.write_text(found.group(1))
    assert load_recipe(path).recipe.preset == "dapo"


def test_the_command_writes_the_page(tmp_path):
    written = tmp_path / "recipe.md"
    subprocess.run([sys.executable, "-m", "assay.recipe.reference", str(written)], cwd=ROOT, check=True)
    assert written.read_text(encoding="utf-8") == page()
