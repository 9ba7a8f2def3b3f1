"""Are two answers the same? The question's wording settles what the texts leave open.

An answer with several different values is never equal to a single one; order counts in tuples, in named values, and
where the question asks for an order; a unit that only one side has repeats what the question asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.reward.mathematics.families import same_family
from assay.reward.mathematics.items import same_item
from assay.reward.mathematics.notation import written_out
from assay.reward.mathematics.question import LARGE, ORDER, Question
from assay.reward.mathematics.reading import Answer, Item, read
from assay.reward.mathematics.spans import NotASpan, Span, combined, same_spans, spans
from assay.reward.mathematics.structure import MOST_MEMBERS
from assay.reward.mathematics.tree import Builder, Chain, Combined, Group, Node, Reals

_SETS_IN_WORDS = {"all real numbers": Reals("R"), "no solution": Reals("O")}


def same_answer(gold: str, answer: str, question: str = "") -> bool | None:
    r"""Does the answer say the same as the gold one? ``None`` when the gold one cannot be read.

    >>> same_answer(r"\pm 12", r"x=-12 \text{ or } x=12"), same_answer("(1,2)", "(2,1)")
    (True, False)
    >>> same_answer("42", "41, 42"), same_answer("x+1=3", "3"), same_answer(r"\frac{1}{", "1") is None
    (False, False, True)
    """
    asked = Question(question)
    if not asked.says(LARGE):
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
        return same_item(golds[0], answers[0], question)
    if len(golds) == 1:
        if (members := _members(golds[0])) and not answer.in_braces and not question.says("interval"):
            return _in_order(members, _by_name(answers), question)
        return all(same_item(golds[0], item, question) for item in answers) and not answer.in_braces
    if len(answers) == 1:
        members = _members(answers[0])
        if members is None or gold.in_braces:
            return False
        if _is_list(answers[0]) and not any(item.name for item in golds) and question.asks_all:
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
        return names[0] == names[1] and all(same_item(item, named[item.name], question) for item in golds)
    if names[0] and names[1] and len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
        return False
    bare = [tuple(replace(item, name="") if item.values else item for item in side) for side in (golds, answers)]
    if question.says(ORDER) or len(names[0]) == len(golds) > 1:
        return _in_order(bare[0], bare[1], question)
    return _in_any_order(bare[0], bare[1], question)


def _each_once(items: Sequence[Item], question: Question) -> tuple[Item, ...]:
    if len(items) > MOST_MEMBERS:
        return tuple({item.values: item for item in items}.values())
    kept: list[Item] = []
    for item in items:
        if not any(same_item(other, item, question) for other in kept):
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


def _named_apart(items: Sequence[Item]) -> bool:
    return len({item.name for item in items if item.name}) == len(items)


def _by_name(items: Sequence[Item]) -> tuple[Item, ...]:
    """``y=2, x=1`` in the order of the names, which are dropped."""
    if len({item.name for item in items if len(item.name) == 1}) == len(items):
        items = sorted(items, key=lambda item: item.name)
    return tuple(replace(item, name="") if item.values else item for item in items)


def _in_order(golds: Sequence[Item], answers: Sequence[Item], question: Question) -> bool:
    return len(golds) == len(answers) and all(
        same_item(one, other, question) for one, other in zip(golds, answers, strict=True)
    )


def _in_any_order(golds: Sequence[Item], answers: Sequence[Item], question: Question) -> bool:
    if len(golds) > MOST_MEMBERS:
        return len(golds) == len(answers) and {item.values for item in golds} == {item.values for item in answers}
    left = list(answers)
    for gold in golds:
        found = next((item for item in left if same_item(gold, item, question)), None)
        if found is None:
            return False
        left.remove(found)
    return not left
