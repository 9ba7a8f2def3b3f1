"""A folder imports only what stands before it. The sources are read: imports within functions count too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "assay"
LAYERS = ["data", "rollout", "reward", "objective", "policy", "sync", "track", "loop", "view", "plan"]
FOUNDATION = {"records", "errors", "registry", "recipe", "hardware", "http", "kernels"}
ROOT_MODULES = {"cli", "explain", "doctor", "__init__", "__main__"}
MODULES = sorted(ROOT.rglob("*.py"))


def imports(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Dotted names that a module imports, wherever it does: at the top, in functions, under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            # ``from assay import loop`` names a folder; ``from assay import Recipe`` the package itself.
            yield from (f"{stem}.{alias.name}" if stem == "assay" else stem for alias in node.names)


def part_of(name: str) -> str:
    """The folder or root module of ``assay`` that an imported name belongs to."""
    pieces = name.split(".")
    known = len(pieces) > 1 and (pieces[1] in {*LAYERS, *FOUNDATION, *ROOT_MODULES})
    return pieces[1] if known else "__init__"


def complaints(source: str, path: Path) -> list[str]:
    """What the module at ``path`` (relative to the package) imports against the flow."""
    here = path.parts[0].removesuffix(".py")
    package = ("assay", *path.parts[:-1])
    if here in ROOT_MODULES:
        return []
    allowed = set(FOUNDATION)
    if here in LAYERS:
        allowed |= set(LAYERS[: LAYERS.index(here) + 1])
    found = {part_of(n) for n in imports(source, package) if n.split(".")[0] == "assay"}
    if here == "objective":
        found -= FOUNDATION | {"objective"}
        strangers = {n.split(".")[0] for n in imports(source, package)} - {"assay", "torch", "__future__"}
        found |= strangers - set(sys.stdlib_module_names)
        allowed = set()
    return sorted(f"{path}: imports {part}" for part in found - allowed)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_folder_imports_only_what_stands_before_it(path):
    assert complaints(path.read_text(encoding="utf-8"), path.relative_to(ROOT)) == []


def test_every_folder_has_its_place():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders <= {*LAYERS, "recipe", "kernels"}
    modules = {p.stem for p in ROOT.glob("*.py")}
    assert modules <= ROOT_MODULES | FOUNDATION


@pytest.mark.parametrize(
    ("path", "source", "blamed"),
    [
        ("data/rows.py", "from assay.loop.run import Run", "loop"),
        ("data/rows.py", "def f():\n    import assay.policy.model", "policy"),
        ("rollout/x.py", "if TYPE_CHECKING:\n    from assay.reward.scorer import Scorer", "reward"),
        ("rollout/x.py", "from ..view import report", "view"),
        ("track/x.py", "from assay import loop", "loop"),
        ("loop/x.py", "from assay import Recipe", "__init__"),
        ("loop/x.py", "from assay.cli import main", "cli"),
        ("view/x.py", "from assay.explain import explain", "explain"),
        ("objective/x.py", "import numpy as np", "numpy"),
        ("objective/x.py", "from assay.data.rows import Row", "data"),
        ("recipe/x.py", "from assay.objective.loss import LOSSES", "objective"),
        ("records.py", "from assay.data.rows import Row", "data"),
    ],
)
def test_an_import_against_the_flow_is_found(path, source, blamed):
    assert complaints(source, Path(path)) == [f"{path}: imports {blamed}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "loop/x.py",
            "from assay.data.rows import Row\nfrom assay.errors import UserError\nfrom . import run",
        ),
        (
            "objective/loss.py",
            "import math\nimport torch\nfrom assay.recipe.schema import Recipe\nfrom .kl import kl",
        ),
        ("cli.py", "from assay.loop.run import Run\nfrom assay.explain import explain"),
        ("recipe/load.py", "import yaml\nfrom assay.errors import UserError"),
    ],
)
def test_an_import_with_the_flow_passes(path, source):
    assert complaints(source, Path(path)) == []
