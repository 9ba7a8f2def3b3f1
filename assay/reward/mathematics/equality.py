"""Are two answers the same? The question's wording settles what the texts leave open.

An answer with several different values is never equal to a single one; order counts in tuples, in named values, and
where the question asks for an order; a unit that only one side has repeats what the question asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import mpmath

from assay.reward.mathematics.equations import same_relation
from assay.reward.mathematics.families import same_family
from assay.reward.mathematics.notation import written_out
from assay.reward.mathematics.numbers import Domain, real_value, same_value
from assay.reward.mathematics.quantities import same_quantity
from assay.reward.mathematics.reading import Answer, Item, read
from assay.reward.mathematics.spans import NotASpan, Span, combined, same_spans, spans
from assay.reward.mathematics.tree import (
    Builder,
    Chain,
    Combined,
    Group,
    Matrix,
    Node,
    Product,
    Reals,
    Sym,
    renamed,
    symbols,
    walk,
)
from assay.reward.mathematics.value import real
from assay.reward.mathematics.vectors import as_vector
from assay.reward.mathematics.words import said

MOST_MEMBERS = 40
"""Items without an order that are compared each with each; longer lists must be spelled alike."""
_ORDER = re.compile(
    r"\b(?:ascending|descending|increasing|decreasing)\s+order"
    r"|from (?:least|greatest|smallest|largest)|\brespectively\b",
    re.IGNORECASE,
)
_ROUNDED = re.compile(r"\bround|nearest|approximat|decimal place|significant", re.IGNORECASE)
_REDUCED = re.compile(
    r"lowest terms|simplest form|reduced form|irreducible|fully simplified|fully reduced", re.IGNORECASE
)
_POSITIVE = re.compile(r"\bpositive\b|> ?0|\\gt ?0", re.IGNORECASE)
_INTEGER = re.compile(r"\b(?:integers?|natural numbers?|whole numbers?)\b", re.IGNORECASE)
_LARGE = re.compile(r"\b(?:thousand|million|billion|trillion)s?\b", re.IGNORECASE)
_ALL = re.compile(
    r"\b(?:find|list|give|determine|what are|compute|state)\s+(?:\w+\s+)?all\b"
    r"|\ball (?:\w+ ){0,3}(?:values|solutions|roots|zeros|numbers|integers|primes|factors|divisors)\b"
    r"|\bsolutions? (?:of|to|for)\b|\bwhat are the\b|\b(?:roots|zeros) of\b",
    re.IGNORECASE,
)
"""Questions for values that have no order among them."""
_TUPLE = re.compile(
    r"\binterval|\bordered\b|\bpoints?\b|\bcoordinates?\b|\bvert(?:ex|ices)\b|\btuples?\b|\bpairs?\b|\btriples?\b|\bvectors?\b"
    r"|\binequalit|\brange\b|\bdomain\b|\bincreasing|\bdecreasing|\bsystem\b|\([A-Za-z]\s*,\s*[A-Za-z]",
    re.IGNORECASE,
)
_CONSTANTS = frozenset({"C", "c", "K", "C_1", "c_1"})
_SETS_IN_WORDS = {"all real numbers": Reals("R"), "no solution": Reals("O")}


@dataclass(frozen=True)
class Question:
    """The wording of a question, and what it settles."""

    text: str = ""

    @cached_property
    def domain(self) -> Domain:
        """What the unknowns are."""
        positive = bool(_POSITIVE.search(self.text))
        return Domain(positive, bool(_INTEGER.search(self.text)) and positive)

    def says(self, pattern: re.Pattern[str] | str) -> bool:
        """Does the wording match?"""
        return bool(re.search(pattern, self.text, 0 if isinstance(pattern, re.Pattern) else re.IGNORECASE))


def same_answer(gold: str, answer: str, question: str = "") -> bool | None:
    r"""Does the answer say the same as the gold one? ``None`` when the gold one cannot be read.

    >>> same_answer(r"\pm 12", r"x=-12 \text{ or } x=12"), same_answer("(1,2)", "(2,1)")
    (True, False)
    >>> same_answer("42", "41, 42"), same_answer("x+1=3", "3"), same_answer(r"\frac{1}{", "1") is None
    (False, False, True)
    """
    asked = Question(question)
    if not asked.says(_LARGE):
        gold, answer = written_out(gold), written_out(answer)
    golds, answers = read(gold), read(answer)
    if not any(all(item.readable for item in one.items) for one in golds):
        return True if golds and answers and golds[0] == answers[0] else None
    return any(_same(one, other, asked) for one in golds for other in answers)


def _same(gold: Answer, answer: Answer, question: Question) -> bool:
    if not answer.items:
        return False
    if gold.letter or answer.letter:
        sides = [[item.values[-1] for item in side.items if item.values] for side in (gold, answer)]
        whole = all(len(nodes) == len(side.items) for nodes, side in zip(sides, (gold, answer), strict=True))
        return whole and same_family(sides[0], gold.letter, sides[1], answer.letter)
    as_sets = _same_as_sets(gold, answer)
    if as_sets is not None:
        return as_sets
    return _same_items(gold, answer, question)


def _same_as_sets(gold: Answer, answer: Answer) -> bool | None:
    """The verdict where one side is an inequality or a union of intervals; else ``None``."""
    if not any(_is_set(item) for side in (gold, answer) for item in side.items):
        return None
    try:
        left, right = _as_spans(gold), _as_spans(answer)
    except NotASpan:
        return None
    return same_spans(left, right)


def _is_set(item: Item) -> bool:
    return item.words in _SETS_IN_WORDS or any(
        isinstance(v, (Builder, Combined, Reals)) or (isinstance(v, Chain) and v.relations != ("=",))
        for v in item.values
    )


def _as_spans(answer: Answer) -> list[Span]:
    sets = []
    for item in answer.items:
        node = item.values[0] if len(item.values) == 1 else _SETS_IN_WORDS.get(item.words)
        if node is None or item.unit is not None:
            raise NotASpan
        is_point = item.name or (answer.in_braces and not isinstance(node, Group))
        sets.append(spans(Group(r"\{", (node,), r"\}") if is_point and not _shaped(node) else node))
    if answer.joined == ",":
        common = combined(sets, "and")
        return common if common else _united(sets)
    return combined(sets, "and") if answer.joined == "and" and not answer.in_braces else _united(sets)


def _shaped(node: Node) -> bool:
    return isinstance(node, (Chain, Group, Combined, Builder, Reals))


def _united(sets: list[list[Span]]) -> list[Span]:
    outer = combined(sets, "or")
    return spans(Combined("or", tuple(_node(span) for span in outer))) if len(outer) > 1 else outer


def _node(span: Span) -> Node:
    if span.low == span.high:
        return Group(r"\{", (span.low,), r"\}")
    return Group("[" if span.low_closed else "(", (span.low, span.high), "]" if span.high_closed else ")")


def _same_items(gold: Answer, answer: Answer, question: Question) -> bool:
    golds, answers = gold.items, answer.items
    if len(golds) == len(answers) == 1:
        return _same_item(golds[0], answers[0], question)
    if len(golds) == 1:
        if (members := _members(golds[0])) and not answer.in_braces and not question.says("interval"):
            return _in_order(members, _by_name(answers), question)
        return all(_same_item(golds[0], item, question) for item in answers) and not answer.in_braces
    if len(answers) == 1:
        members = _members(answers[0])
        if members is None or gold.in_braces:
            return False
        if _is_list(answers[0]) and not any(item.name for item in golds) and _asks_all(question):
            return _in_any_order(golds, members, question)
        if not (_is_python_list(answers[0]) or _named_apart(golds)):
            return False
        return _in_order(_by_name(golds), members, question)
    if gold.in_braces or answer.in_braces:  # a set has each element once
        golds, answers = _each_once(golds, question), _each_once(answers, question)
    if len(golds) != len(answers):
        return False
    names = [{item.name for item in side if item.name} for side in (golds, answers)]
    if all(len(found) == len(golds) for found in names):
        named = {item.name: item for item in answers}
        return names[0] == names[1] and all(_same_item(item, named[item.name], question) for item in golds)
    if names[0] and names[1] and len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
        return False
    bare = [tuple(replace(item, name="") if item.values else item for item in side) for side in (golds, answers)]
    if question.says(_ORDER) or len(names[0]) == len(golds) > 1:
        return _in_order(bare[0], bare[1], question)
    return _in_any_order(bare[0], bare[1], question)


def _each_once(items: Sequence[Item], question: Question) -> tuple[Item, ...]:
    if len(items) > MOST_MEMBERS:
        return tuple({item.values: item for item in items}.values())
    kept: list[Item] = []
    for item in items:
        if not any(_same_item(other, item, question) for other in kept):
            kept.append(item)
    return tuple(kept)


def _members(item: Item) -> tuple[Item, ...] | None:
    """The items of a tuple."""
    node = item.values[0] if len(item.values) == 1 and item.unit is None else None
    if not isinstance(node, Group) or node.opening == r"\{":
        return None
    return tuple(Item(repr(member), values=(member,)) for member in node.items)


def _is_python_list(item: Item) -> bool:
    """Is it ``[1, 2, 3]``, too long for an interval?"""
    node = item.values[0]
    return isinstance(node, Group) and node.opening == "[" and node.closing == "]" and len(node.items) > 2


def _is_list(item: Item) -> bool:
    """Is it a list in brackets: ``(1, 2)`` or ``[1, 2, 3]``?"""
    node = item.values[0]
    return _is_python_list(item) or (isinstance(node, Group) and (node.opening, node.closing) == ("(", ")"))


def _asks_all(question: Question) -> bool:
    """Is it a question for all values, and not for a point or an interval?"""
    return question.says(_ALL) and not question.says(_TUPLE) and not question.says(_ORDER)


def _named_apart(items: Sequence[Item]) -> bool:
    return len({item.name for item in items if item.name}) == len(items)


def _by_name(items: Sequence[Item]) -> tuple[Item, ...]:
    """``y=2, x=1`` in the order of the names, which are dropped."""
    if len({item.name for item in items if len(item.name) == 1}) == len(items):
        items = sorted(items, key=lambda item: item.name)
    return tuple(replace(item, name="") if item.values else item for item in items)


def _in_order(golds: Sequence[Item], answers: Sequence[Item], question: Question) -> bool:
    return len(golds) == len(answers) and all(
        _same_item(one, other, question) for one, other in zip(golds, answers, strict=True)
    )


def _in_any_order(golds: Sequence[Item], answers: Sequence[Item], question: Question) -> bool:
    if len(golds) > MOST_MEMBERS:
        return len(golds) == len(answers) and {item.values for item in golds} == {item.values for item in answers}
    left = list(answers)
    for gold in golds:
        found = next((item for item in left if _same_item(gold, item, question)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _same_item(gold: Item, answer: Item, question: Question) -> bool:
    if answer.unreduced and question.says(_REDUCED):
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
    if answer.about and question.says(_ROUNDED):
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


def same_node(a: Node, b: Node, domain: Domain) -> bool:
    """Are two values the same: numbers and functions by value, brackets and matrices entry by entry?"""
    a, b = _scaled(a), _scaled(b)
    a, b = as_vector(a, b), as_vector(b, a)
    if a == b:
        return True
    match a, b:
        case Matrix(rows), Matrix(others):
            return [len(r) for r in rows] == [len(r) for r in others] and all(
                same_node(x, y, domain) for r, s in zip(rows, others, strict=True) for x, y in zip(r, s, strict=True)
            )
        case (Matrix(), Group()) | (Group(), Matrix()):
            matrix, group = (a, b) if isinstance(a, Matrix) else (b, a)
            return _same_vector(matrix, group, domain)
        case Group("mod", (one, modulus), _), Group("mod", (other, divisor), _):
            return modulus == divisor and _congruent(one, other, modulus)
        case (_, Group("mod", (other, _), _)) | (Group("mod", (other, _), _), _):
            return same_node(a if isinstance(b, Group) and b.opening == "mod" else b, other, domain)
        case Group(r"\{", items, _), Group(r"\{", others, _):
            return _same_members(items, others, domain)
        case Group(), Group():
            alike = (a.opening, a.closing) == (b.opening, b.closing)
            return (alike and len(a.items) == len(b.items)) and all(
                same_node(x, y, domain) for x, y in zip(a.items, b.items, strict=True)
            )
        case Chain(), Chain():
            return _same_chain(a, b, domain)
    if any(isinstance(n, (Group, Matrix, Chain, Builder, Combined, Reals)) for side in (a, b) for n in walk(side)):
        return False
    return same_value(a, b, domain)


def _congruent(a: Node, b: Node, modulus: Node) -> bool:
    one, other, divisor = real_value(a), real_value(b), real_value(modulus)
    if not (isinstance(one, Fraction) and isinstance(other, Fraction) and isinstance(divisor, Fraction)):
        return False
    return divisor != 0 and ((one - other) / divisor).denominator == 1


def _scaled(node: Node) -> Node:
    """A matrix with a number before it, multiplied out; any other node as it is."""
    if not isinstance(node, Product) or sum(isinstance(f, Matrix) for f in node.factors) != 1:
        return node
    matrix = next(f for f in node.factors if isinstance(f, Matrix))
    rest = tuple(f for f in node.factors if f is not matrix)
    return Matrix(tuple(tuple(Product((*rest, entry)) for entry in row) for row in matrix.rows))


def _same_vector(matrix: Node, group: Node, domain: Domain) -> bool:
    if not isinstance(matrix, Matrix) or not isinstance(group, Group) or group.opening != "(" or group.closing != ")":
        return False
    column = all(len(row) == 1 for row in matrix.rows)
    entries = [row[0] for row in matrix.rows] if column else list(matrix.rows[0]) if len(matrix.rows) == 1 else []
    return len(entries) == len(group.items) and all(
        same_node(x, y, domain) for x, y in zip(entries, group.items, strict=True)
    )


def _same_members(items: Sequence[Node], others: Sequence[Node], domain: Domain) -> bool:
    if max(len(items), len(others)) > MOST_MEMBERS:
        return set(items) == set(others)
    return all(
        any(same_node(x, y, domain) for y in right) for left, right in ((items, others), (others, items)) for x in left
    )


def _same_chain(a: Chain, b: Chain, domain: Domain) -> bool:
    if len(a.relations) == len(b.relations) == 1:
        return same_relation(a, b, domain)
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    for parts, relations in (
        (b.parts, b.relations),
        (b.parts[::-1], tuple(turned.get(relation, relation) for relation in b.relations[::-1])),
    ):
        if a.relations == relations and all(same_node(x, y, domain) for x, y in zip(a.parts, parts, strict=True)):
            return True
    return False
