"""What the rules in files of their own need of the parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from assay.reward.mathematics.tokens import Token
from assay.reward.mathematics.tree import Node


class Reader(Protocol):
    """What is needed of the parser."""

    @property
    def here(self) -> Token:
        """The token that comes next."""
        ...

    def is_at(self, *texts: str, kind: str = "op") -> bool:
        """Is the next token one of these?"""
        ...

    def take(self) -> Token:
        """The next token, consumed."""
        ...

    def atom(self) -> Node:
        """An operand."""
        ...

    def term(self) -> Node:
        """A product."""
        ...

    def nested(self, rule: Callable[[], Node]) -> Node:
        """The node of a rule, one level deeper."""
        ...

    def expect(self, text: str) -> None:
        """Consume this operator. Raises Unreadable when another token is next."""
        ...

    def relation(self) -> Node:
        """The loosest rule: a whole expression."""
        ...

    def factor(self) -> Node:
        """An operand with its powers and factorials."""
        ...

    def factor_follows(self) -> bool:
        """Does a factor come next, without a sign before it?"""
        ...

    def exponent(self) -> Node:
        """What stands after ``^``."""
        ...

    def bracketed(self, opening: str) -> Node:
        """What stands in brackets of which the first has been read."""
        ...

    def enclosed(self, closing: str, name: str) -> Node:
        """The function ``name`` of what stands before ``closing``."""
        ...

    def braced(self) -> Node:
        """An argument of a command."""
        ...
