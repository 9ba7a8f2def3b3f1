r"""Tokens -> nodes, by recursive descent: LaTeX and plain notation in one grammar.

Precedence, from the loosest: relations, unions and intersections, sums, products (also without a sign between the
factors), signs, powers and factorials. ``1/2x`` is half of x; ``3\frac{1}{2}`` and ``3 1/2`` are mixed numbers;
``\sin 2x\cos x`` is a product of two functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from assay.reward.mathematics.commands import OPERANDS, command
from assay.reward.mathematics.functions import applied
from assay.reward.mathematics.tokens import FUNCTIONS, Dialect, Token, Unreadable, tokenize
from assay.reward.mathematics.tree import (
    Builder,
    Call,
    Chain,
    Combined,
    Const,
    Group,
    Node,
    Num,
    Power,
    Product,
    Reals,
    Signed,
    Sum,
    Sym,
    negated,
    product,
    quotient,
)

DEEPEST = 60
"""Brackets and exponents inside each other that are read."""
_RELATIONS = {"=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "in": "in"}
_SETS = {"cup": "or", "cap": "and", "setminus": "minus"}
_BRACKETS = {"(": ")", "[": "]", r"\{": r"\}"}


def parse(text: str, dialect: Dialect | None = None) -> Node:
    r"""The expression of a text in plain spelling; Unreadable when it is none.

    >>> parse("x+1") == parse("x + 1"), parse(r"\frac12") == parse("1/2") == parse("0.5")
    (True, True)
    """
    parser = _Parser(tokenize(text, dialect or Dialect()))
    node = parser.relation()
    if parser.here.kind != "end":
        raise Unreadable(f"{parser.here.text!r} left over")
    return node


@dataclass
class _Parser:
    tokens: list[Token]
    at: int = 0
    depth: int = 0
    bars: list[int] = field(default_factory=list)
    """Depths at which an absolute value or a set is open: there a bar closes or divides, and opens nothing."""

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def is_at(self, *texts: str, kind: str = "op") -> bool:
        return self.here.kind == kind and self.here.text in texts

    def take(self) -> Token:
        token = self.here
        self.at += token.kind != "end"
        return token

    def expect(self, text: str) -> None:
        if not self.is_at(text):
            raise Unreadable(f"{text!r} is missing before {self.here.text!r}")
        self.take()

    def nested(self, rule: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("nested too deeply")
        node = rule()
        self.depth -= 1
        return node

    def relation(self) -> Node:
        parts, relations = [self.union()], []
        while (found := _RELATIONS.get(self.here.text)) and self.here.kind in ("op", "command"):
            self.take()
            relations.append(found)
            parts.append(self.union())
        return Chain(tuple(parts), tuple(relations)) if relations else parts[0]

    def union(self) -> Node:
        node = self.sum()
        while self.here.kind == "command" and self.here.text in _SETS:
            how = _SETS[self.take().text]
            right = self.sum()
            joined = node.parts if isinstance(node, Combined) and node.how == how != "minus" else (node,)
            node = Combined(how, (*joined, right))
        return node

    def sum(self) -> Node:
        terms = [self.signed(self.take().text) if self._at_sign() else self.term()]
        while self._at_sign():
            terms.append(self.signed(self.take().text))
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def _at_sign(self) -> bool:
        return self.is_at("+", "-") or self.is_at("pm", "mp", kind="command")

    def signed(self, sign: str) -> Node:
        operand = self.nested(lambda: self.signed(self.take().text)) if self._at_sign() else self.term()
        if sign == "+":
            return operand
        return negated(operand) if sign == "-" else Signed(1 if sign == "pm" else -1, operand)

    def term(self) -> Node:
        node = self.factor()
        factors = [node]
        while True:
            if self.is_at("*") or self.is_at("times", "cdot", kind="command"):
                self.take()
                factors.append(self.nested(lambda: self.signed("-") if self._minus() else self.factor()))
            elif self.is_at("/"):
                self.take()
                below = self.nested(lambda: self.signed("-") if self._minus() else self.factor())
                factors[:] = [quotient(product(factors), below)]
            elif self.factor_follows():
                if self.here.kind == "number" and isinstance(factors[-1], Num):
                    raise Unreadable("two numbers side by side")
                factors.append(self.factor())
            else:
                return product(factors)

    def _minus(self) -> bool:
        if self.is_at("-"):
            self.take()
            return True
        return False

    def factor_follows(self) -> bool:
        if self.here.kind in ("number", "name"):
            return True
        if self.here.kind == "command":
            return self.here.text in OPERANDS or self.here.text.startswith("begin ")
        if self.is_at("|"):
            return not self.bars or self.bars[-1] != self.depth
        return self.is_at("(", "{")

    def factor(self) -> Node:
        start = self.at
        node = self.atom()
        while True:
            if self.is_at("!"):
                self.take()
                node = Call("factorial", (node,))
            elif self.is_at("^"):
                self.take()
                node = self.power(node)
            else:
                break
        mixed = self.at == start + 1 and self.tokens[start].kind == "number"
        return self._mixed(node) if mixed else node

    def power(self, base: Node) -> Node:
        if self.is_at("circ", kind="command") or (
            self.is_at("{") and self.tokens[self.at + 1].text == "circ" and self.tokens[self.at + 2].text == "}"
        ):
            self.at += 3 if self.is_at("{") else 1
            return Product((base, Const("pi"), Num(Fraction(1, 180))))
        return Power(base, self.nested(self.exponent))

    def exponent(self) -> Node:
        if self.is_at("-", "+"):
            sign = self.take().text
            inner = self.nested(self.exponent)
            return negated(inner) if sign == "-" else inner
        node = self.atom()
        if self.is_at("^"):
            self.take()
            return self.power(node)
        return node

    def _mixed(self, whole: Node) -> Node:
        """``3 1/2`` and ``3\\frac{1}{2}``: a whole number directly before a proper fraction."""
        if not isinstance(whole, Num) or whole.value.denominator != 1:
            return whole
        start = self.at
        part = None
        if self.is_at("frac", kind="command"):
            part = self.factor()
        elif self.here.kind == "number" and self.here.spaced and self.tokens[self.at + 1].text == "/":
            top = self.take().value
            self.take()
            if self.here.kind == "number" and self.here.value:
                part = Num(top / self.take().value)
        if isinstance(part, Num) and 0 < part.value < 1 and not self.is_at("^"):
            return Num(whole.value + part.value)
        self.at = start
        return whole

    def atom(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return Num(token.value)
        if token.kind == "name":
            return self.nested(lambda: self.named(token.text))
        if token.kind == "command":
            return self.nested(lambda: command(self, token.text))
        if token.text == "{" and token.kind == "op":
            node = self.nested(self.relation)
            self.expect("}")
            return node
        if token.text in _BRACKETS:
            return self.nested(lambda: self.bracketed(token.text))
        if token.text == "|":
            return self.nested(lambda: self.enclosed("|", "abs"))
        raise Unreadable(f"{token.text!r} out of place" if token.text else "it ends too early")

    def bracketed(self, opening: str) -> Node:
        closings = (")", "]") if opening != r"\{" else (r"\}",)
        if self.is_at(*closings):
            if opening != r"\{":
                raise Unreadable("empty brackets")
            self.take()
            return Reals("O")
        if opening == r"\{":
            self.bars.append(self.depth)
        items = [self.relation()]
        if opening == r"\{":
            self.bars.pop()
        if opening == r"\{" and self.is_at("|", ":"):
            self.take()
            condition = self.relation()
            self.expect(r"\}")
            return Builder(items[0], condition)
        while self.is_at(",", ";"):
            self.take()
            items.append(self.relation())
        if not self.is_at(*closings):
            raise Unreadable(f"{opening!r} is never closed")
        closing = self.take().text
        if len(items) == 1 and opening != r"\{":
            if _BRACKETS[opening] != closing:
                raise Unreadable("brackets that do not match")
            return items[0]
        return Group(opening, tuple(items), closing)

    def enclosed(self, closing: str, name: str) -> Node:
        if closing == "|":
            self.bars.append(self.depth)
        node = self.relation()
        if closing == "|":
            self.bars.pop()
        if not (self.is_at(closing) or self.is_at(closing, kind="command")):
            raise Unreadable(f"{closing!r} is missing")
        self.take()
        return Call(name, (node,))

    def named(self, name: str) -> Node:
        if name in FUNCTIONS:
            return applied(self, name)
        if name in ("pi", "inf"):
            return Const(name)
        if name in ("e", "i") and not self.is_at("_"):
            return Const(name)
        return Sym(name + self.subscript())

    def subscript(self) -> str:
        if not self.is_at("_"):
            return ""
        self.take()
        if not self.is_at("{"):
            return f"_{self.take().text}"
        self.take()
        inside: list[str] = []
        while not self.is_at("}"):
            if self.here.kind == "end" or self.is_at("{"):
                raise Unreadable("a subscript that is never closed")
            inside.append(self.take().text)
        self.take()
        return "_" + "".join(inside)

    def braced(self) -> Node:
        r"""An argument of a command: ``{...}``, or one token, of a number its first digit."""
        token = self.here
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            first, rest = token.text[0], token.text[1:]
            self.tokens[self.at : self.at + 1] = [
                Token("number", first, Fraction(first)),
                Token("number", rest, Fraction(rest)),
            ]
        return self.nested(self.atom)
