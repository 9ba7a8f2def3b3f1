"""Are two items of answers the same: values with what is said of them, digits in a base, or words?"""

from __future__ import annotations

import re
from dataclasses import replace

import mpmath

from assay.reward.mathematics.numbers import real_value
from assay.reward.mathematics.quantities import same_quantity
from assay.reward.mathematics.question import REDUCED, ROUNDED, Question
from assay.reward.mathematics.reading import Item, read
from assay.reward.mathematics.structure import same_node
from assay.reward.mathematics.tree import Chain, Node, Sym, renamed, symbols
from assay.reward.mathematics.value import real
from assay.reward.mathematics.words import said

_CONSTANTS = frozenset({"C", "c", "K", "C_1", "c_1"})


def same_item(gold: Item, answer: Item, question: Question) -> bool:
    """Is one item of an answer what one of the gold answer is, with the units, names and bases that stand with them?"""
    if answer.unreduced and question.says(REDUCED):
        return False
    if (
        gold.text.isalpha()
        and (len(gold.text) > 2 or gold.text.casefold() == "no")
        and gold.text.casefold() == answer.text.casefold()
    ):
        return True  # Red and red: short words read as products
    if gold.base or answer.base:
        return _same_digits(gold, answer, question)
    if not gold.values or not answer.values:
        return _same_words(gold, answer)
    if gold.text == answer.text and not answer.about:
        return True
    values = answer.values
    if any(not same_node(values[0], other, question.domain) for other in values[1:]):
        return False  # 6 * 7 = 40
    if any(not _is_near(values[0], other) for other in answer.about):
        return False
    if _same_valued(gold, answer, question):
        return True
    if answer.about and question.says(ROUNDED):
        return any(_same_valued(gold, replace(answer, values=(near,)), question) for near in answer.about)
    return False


def _same_digits(gold: Item, answer: Item, question: Question) -> bool:
    if gold.base == answer.base:
        return gold.text == answer.text
    based, bare = (gold, answer) if gold.base else (answer, gold)
    if bare.base:
        return False
    digits = based.text.rpartition("_")[0]
    written = bare.text.lstrip("0") or "0"
    return written == digits and (based.base == 10 or question.says(rf"\bbase[ -]?\$?{based.base}\b"))


def _same_words(gold: Item, answer: Item) -> bool:
    if not (gold.words or answer.words):
        return gold.text == answer.text
    left, right = gold.words or said(gold.text), answer.words or said(answer.text)
    return left == right and bool(left)


def _is_near(value: Node, about: Node) -> bool:
    exact, rounded = real_value(value), real_value(about)
    if exact is None or rounded is None:
        return True
    left, right = (real(number, mpmath.mp) for number in (exact, rounded))
    return bool(abs(left - right) <= max(abs(left), abs(right)) / 50 + mpmath.mpf(1) / 100)


def _same_valued(gold: Item, answer: Item, question: Question) -> bool:
    one, other = gold.values[-1], _constant_of(gold.values[-1], answer.values[0])
    equations = [isinstance(node, Chain) and node.relations == ("=",) for node in (one, other)]
    if equations[0] != equations[1]:
        if equations[1] and not gold.name and not symbols(one):
            return _states(other, question) and same_node(one, _right(other), question.domain)
        left, right = _equation(gold, one), _equation(answer, other)
        return left is not None and right is not None and same_node(left, right, question.domain)
    if gold.name and answer.name and gold.name != answer.name:
        if symbols(one) and symbols(other) and _is_letter(gold.name) and _is_letter(answer.name):
            left, right = _equation(gold, one), _equation(answer, other)
            if gold.name not in symbols(other) and answer.name not in symbols(one):
                return same_quantity(gold, answer, one, other, question.text, question.domain, same_node)
            return left is not None and right is not None and same_node(left, right, question.domain)
        if _is_letter(gold.name) and _is_letter(answer.name):
            return False
    return same_quantity(gold, answer, one, other, question.text, question.domain, same_node)


def _constant_of(gold: Node, answer: Node) -> Node:
    """The answer with its constant of integration called as in the gold answer."""
    missing, extra = symbols(gold) - symbols(answer), symbols(answer) - symbols(gold)
    if missing | extra and missing <= _CONSTANTS and extra <= _CONSTANTS and len(missing) == len(extra) == 1:
        return renamed(answer, next(iter(extra)), next(iter(missing)))
    return answer


def _is_letter(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z](?:_\{?\w+\}?)?", name))


def _equation(item: Item, node: Node) -> Node | None:
    if isinstance(node, Chain):
        return node
    return Chain((Sym(item.name), node), ("=",)) if _is_letter(item.name) and symbols(node) else None


def _states(node: Node, question: Question) -> bool:
    """Does the question ask for what stands on the left-hand side: "find x + y" and ``x+y=7``?"""
    if not isinstance(node, Chain) or not question.text:
        return False
    left = node.parts[0]
    for piece in re.findall(r"\$([^$]+)\$|\\\((.+?)\\\)|((?:[\w^*/().]+\s*[-+*/]\s*)+[\w^*/().]+)", question.text):
        answers = read("".join(piece).rstrip("."))
        if any(item.values == (left,) for answer in answers for item in answer.items):
            return True
    return False


def _right(node: Node) -> Node:
    return node.parts[-1] if isinstance(node, Chain) else node
