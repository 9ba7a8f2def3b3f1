"""Every public module, class, function and method of the package says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "assay"
MODULES = sorted(ROOT.rglob("*.py"))
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.Module | ast.ClassDef, within: str = "") -> Iterator[tuple[str, Definition]]:
    """Public definitions of a module or class, also under an ``if``; not what a function keeps to itself."""
    bodies = [node.body, *(b for s in node.body if isinstance(s, ast.If) for b in (s.body, s.orelse))]
    for statement in (s for body in bodies for s in body):
        if not isinstance(statement, Definition) or statement.name.startswith("_") or is_overload(statement):
            continue
        name = f"{within}{statement.name}"
        yield name, statement
        if isinstance(statement, ast.ClassDef):
            yield from public(statement, f"{name}.")


def is_overload(node: Definition) -> bool:
    """Does it only declare a type?"""
    return any(ast.unparse(d).split(".")[-1] == "overload" for d in node.decorator_list)


def undocumented(source: str) -> list[str]:
    """Names of a module's public things without a docstring; ``<module>`` for the module itself."""
    tree = ast.parse(source)
    missing = [] if (ast.get_docstring(tree) or "").strip(" .") else ["<module>"]
    return missing + [name for name, node in public(tree) if not (ast.get_docstring(node) or "").strip(" .")]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_public_name_is_documented(path):
    assert undocumented(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/__init__.py")), ids=lambda p: p.parent.name)
def test_every_folder_says_what_comes_in_and_what_goes_out(path):
    assert "->" in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def test_what_lacks_a_docstring_is_found():
    source = '''
"""."""
def f(): ...
def _g(): ...
class A:
    """Said."""
    def m(self): ...
    def _n(self): ...
    @property
    def p(self): ...
    def __len__(self): ...
if True:
    async def h(): ...
def said():
    """Said."""
    def inner(): ...
'''
    assert undocumented(source) == ["<module>", "f", "A.m", "A.p", "h"]
