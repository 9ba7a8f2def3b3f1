"""Which prompts ask the same problem, and how problems (not rows) are held out of training.

Two rows ask one problem when the wording or the order of operands is all that differs: ``5 - 3`` and
``-3 + 5``. A held-out score is worth something only if its problems were never trained on in any form.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from assay.errors import UserError
from assay.records import Message
from assay.registry import Registry

TASK_PROBLEMS: Registry[Callable[[Mapping[str, Any]], str]] = Registry("problem identity")
"""By reasoning-gym task: from a row's ``metadata`` to what is asked, whatever the wording."""


@TASK_PROBLEMS.register("chain_sum")
@TASK_PROBLEMS.register("decimal_chain_sum")
def sum_problem(metadata: Mapping[str, Any]) -> str:
    """The signed terms of a sum, sorted.

    >>> [sum_problem({"expression": e}) for e in ("5 - 3", "-3 + 5", "4 - -1", "4 + 0", "4 - 0")]
    ['-3 5', '-3 5', '1 4', '0 4', '0 4']
    """
    first, *rest = metadata["expression"].split()
    terms = [Decimal(first)]
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        terms.append(-Decimal(term) if operator == "-" else Decimal(term))
    return _numbers(terms)


@TASK_PROBLEMS.register("products")
def product_problem(metadata: Mapping[str, Any]) -> str:
    """The factors of a product, sorted.

    >>> product_problem({"expression": "7 * 3"})
    '3 7'
    """
    return _numbers(map(Decimal, metadata["expression"].split(" * ")))


@TASK_PROBLEMS.register("gcd")
@TASK_PROBLEMS.register("lcm")
def set_problem(metadata: Mapping[str, Any]) -> str:
    """The numbers, sorted.

    >>> set_problem({"numbers": [12, 8]})
    '8 12'
    """
    return _numbers(map(Decimal, metadata["numbers"]))


def problem_of(messages: Sequence[Message], columns: Mapping[str, Any]) -> str:
    """The identity of what is asked.

    A column ``problem`` decides where there is one; else the task's own operands, for generated tasks that
    :data:`TASK_PROBLEMS` knows; else the question's text, case and spacing aside (system messages do not
    count).

    >>> problem_of([{"role": "user", "content": "What is  2 + 2?"}], {})
    'what is 2 + 2?'
    >>> metadata = {"source_dataset": "chain_sum", "expression": "2 - 1"}
    >>> problem_of([{"role": "user", "content": "2 - 1 ="}], {"metadata": metadata})
    'chain_sum: -1 2'
    """
    named = columns.get("problem")
    if named not in (None, ""):
        return _normalise(named if isinstance(named, str) else json.dumps(named, sort_keys=True, default=repr))
    metadata = columns.get("metadata")
    if isinstance(metadata, Mapping):
        task = str(metadata.get("source_dataset"))
        if task in TASK_PROBLEMS and ("expression" in metadata or "numbers" in metadata):
            return f"{task}: {TASK_PROBLEMS[task](metadata)}"
    turns = [m["content"] if m["role"] == "user" else f"{m['role']}: {m['content']}" for m in messages]
    return _normalise("\n".join(t for t, m in zip(turns, messages, strict=True) if m["role"] != "system"))


class HasProblem(Protocol):
    """Anything with the identity of a problem, such as a Prompt."""

    @property
    def problem(self) -> str:
        """See :func:`problem_of`."""
        ...


P = TypeVar("P", bound=HasProblem)


def split_holdout(prompts: Sequence[P], n: int, seed: int = 0) -> tuple[tuple[P, ...], tuple[P, ...]]:
    """Split off ``n`` distinct problems: ``(training, held out)``.

    The problems held out are the first ``n`` in the order of a hash of problem and seed, so the choice
    depends neither on the order of the rows nor on how often a problem occurs. Training prompts keep their
    order; held-out ones come in hash order, so that the first k of them are a fair sample.

    Raises:
        UserError: there are not more than ``n`` problems.
    """
    order = {p: rank for rank, p in enumerate(sorted({p.problem for p in prompts}, key=lambda p: _draw(p, seed)))}
    if n > 0 and n >= len(order):
        raise UserError(
            f"data.holdout: {n} of {len(order)} distinct problems leaves none to train on: hold out fewer, "
            "or widen data.train"
        )
    training = tuple(p for p in prompts if order[p.problem] >= n)
    held_out = sorted((p for p in prompts if order[p.problem] < n), key=lambda p: order[p.problem])
    return training, tuple(held_out)


def _draw(problem: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{problem}".encode(), digest_size=16).digest()


def _numbers(values: Iterable[Decimal]) -> str:
    return " ".join(f"{v + 0:f}" for v in sorted(v.normalize() for v in values))


def _normalise(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().casefold()
