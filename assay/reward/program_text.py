"""The program in a completion: which of its code blocks is meant.

Chosen here: only what follows the reasoning counts. Of the blocks that are Python by their label (or have none, and
compile), those that define what is asked for come first, those introduced as drafts or mistakes last, those introduced
as final before others; of what is left the last one stands. A block left open at the end of the text counts. A
completion without any block is code itself where it compiles.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from assay.reward.extraction import Extraction, after_thinking, tagged
from assay.reward.verifier import Case

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*(.*)$")
_PYTHON = frozenset({"python", "py", "python3", "py3", "python2", "ipython", "pycon", "sage", "cpython"})
_WORD = re.compile(r"[\w+#.-]+")
_FINAL = re.compile(r"\b(final|corrected|fixed|submit|submission|use this|improved|answer)\b", re.IGNORECASE)
_DRAFT = re.compile(
    r"\b(draft|wrong|incorrect|buggy|bug|earlier|first attempt|naive|broken|mistake|old|do not use|don't use|"
    r"example|usage|test it|tests?)\b",
    re.IGNORECASE,
)
_INTRODUCTION = 300


@dataclass(frozen=True)
class Block:
    """A fenced block and the words before it."""

    label: str
    source: str
    introduction: str

    @property
    def is_python(self) -> bool:
        """By its label; without one, by whether it compiles."""
        return self.label in _PYTHON or (not self.label and compiles(self.source))


def find_program(case: Case, entry_point: str | None = None) -> Extraction:
    """The source of the program that a completion offers; ``entry_point``: the name that it is asked to define.

    >>> text = "Draft:\\n```python\\nx = 1\\n```\\nFinal:\\n```python\\nx = 2\\n```\\n```bash\\nls\\n```"
    >>> find_program(Case(completion=text)).text
    'x = 2'
    >>> find_program(Case(completion="I do not know.")).why
    'no program'
    """
    spoken = after_thinking(case)
    if spoken.text is None:
        return spoken
    found = [block for block in blocks(spoken.text) if block.source.strip()]
    wanted = [block for block in found if block.is_python]
    if not wanted:
        bare = [spoken.text, *tagged(spoken.text, "answer")] if not found else []
        source = next((text for text in bare if _looks_like_code(text)), None)
        return Extraction(source, "no program")
    if entry_point is not None:
        name = entry_point.replace("()", "").split(".")[-1]
        wanted = [block for block in wanted if defines(block.source, name)] or wanted
    sound = [block for block in wanted if not _DRAFT.search(_last_words(block))] or wanted
    final = [block for block in sound if _FINAL.search(_last_words(block))] or sound
    return Extraction(final[-1].source)


def blocks(text: str) -> Iterator[Block]:
    """Fenced blocks in order; one left open reaches to the end.

    >>> [(b.label, b.source) for b in blocks("```py\\na\\n```\\n~~~\\nb")]
    [('py', 'a'), ('', 'b')]
    """
    lines = text.splitlines()
    before: list[str] = []
    position = 0
    while position < len(lines):
        opening = _FENCE.match(lines[position])
        position += 1
        if opening is None:
            before.append(lines[position - 1])
            continue
        fence, info = opening[1], opening[2].strip()
        inside: list[str] = []
        while position < len(lines) and not _closes(lines[position], fence):
            inside.append(lines[position])
            position += 1
        position += 1
        label, first = _label(info)
        source = textwrap.dedent("\n".join([first, *inside] if first else inside))
        yield Block(label, source, "\n".join(before))
        before = []


def _closes(line: str, fence: str) -> bool:
    found = _FENCE.match(line)
    return found is not None and found[1][0] == fence[0] and len(found[1]) >= len(fence) and not found[2].strip()


def _label(info: str) -> tuple[str, str]:
    """The language that a fence names, and code that stands on the fence's line.

    >>> _label("python"), _label("Python title=a.py"), _label("def f(x):"), _label("{.python}")
    (('python', ''), ('python', ''), ('', 'def f(x):'), ('python', ''))
    """
    word = _WORD.match(info.strip("{}. "))
    if word is None:
        return "", info
    name = word[0].lower()
    if name in _PYTHON:
        return name, ""
    return ("", info) if len(info.split()) > 1 or "(" in info else (name, "")


def _last_words(block: Block) -> str:
    """The line that introduces a block."""
    lines = [line for line in block.introduction[-_INTRODUCTION:].splitlines() if line.strip()]
    return lines[-1] if lines else ""


def compiles(source: str) -> bool:
    """Is it Python?"""
    return _parsed(source) is not None


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def defines(source: str, name: str) -> bool:
    """Does a source bind this name, at its top or as a method? Looked for as text where it does not compile.

    >>> defines("def f(): ...", "f"), defines("f = g", "f"), defines("print(f(1))", "f"), defines("def f(:", "f")
    (True, True, False, True)
    """
    tree = _parsed(source)
    if tree is None:
        return (
            re.search(rf"\b(def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", source, re.MULTILINE) is not None
        )
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == name:
            return True
    return False


def _looks_like_code(text: str) -> bool:
    """Is a text without fences a program? It compiles, and is more than a word or a number."""
    tree = _parsed(text.strip("\n"))
    return tree is not None and any(not isinstance(node, ast.Expr) or _is_call(node) for node in tree.body)


def _is_call(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Call)
