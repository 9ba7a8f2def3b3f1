"""Nodes -> numbers: exact rationals as long as they stay small, else many digits; never beyond a bound.

``Unsized`` is raised before anything is computed that would be too large, ``Undefined`` where there is no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import mpmath

from assay.reward.mathematics.tree import Call, Const, Node, Num, Power, Product, Sum, Sym, walk

Value = Fraction | Any
"""An exact rational, or a real or complex number of mpmath."""

EXACT_BITS = 120_000
"""Rationals longer than this are not computed exactly."""
MOST_TERMS = 300
"""Terms of a sum over an index."""
MOST_OUTER_TERMS = 20
"""Terms of a sum whose terms are sums."""
LARGEST_EXPONENT = 10_000_000
"""Binary exponents beyond this are refused."""


class Undefined(ArithmeticError):
    """The expression has no value there: a division by zero, a logarithm of zero, an unknown without a value."""


class Unsized(ArithmeticError):
    """The value is too large, too small or too costly to be computed."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates nodes to ``digits`` digits with values for the unknowns."""

    digits: int
    unknowns: Mapping[str, Fraction] = field(default_factory=dict)
    common_log: bool = False
    """Is a logarithm without a base the one to base ten, not the natural one?"""

    def __call__(self, node: Node) -> Value:
        """The value; Undefined or Unsized when there is none."""
        context = _context(self.digits)
        try:
            return _bounded(self._value(node, context))
        except (Undefined, Unsized):
            raise
        except (ZeroDivisionError, ValueError, TypeError) as error:
            raise Undefined(str(error)) from None
        except (OverflowError, MemoryError, RecursionError) as error:
            raise Unsized(str(error)) from None

    def _value(self, node: Node, c: Any) -> Value:
        match node:
            case Num(value):
                return value
            case Const(name):
                if name == "inf":
                    raise Undefined("infinity")
                return {"pi": +c.pi, "e": +c.e, "i": c.mpc(0, 1)}[name]
            case Sym(name):
                if name not in self.unknowns:
                    raise Undefined(name)
                return self.unknowns[name]
            case Sum(terms):
                return self._fold(terms, c, _added)
            case Product(factors):
                return self._fold(factors, c, lambda a, b: a * b)
            case Power(base, exponent):
                return _power(self._value(base, c), self._value(exponent, c), c)
            case Call("sum" | "prod" as name, (Sym(index), low, high, body)):
                return self._total(name, index, (low, high), body, c)
            case Call(name, args):
                return _called(name, [self._value(arg, c) for arg in args], c, self.common_log)
        raise Undefined(type(node).__name__)

    def _total(self, name: str, index: str, bounds: tuple[Node, Node], body: Node, c: Any) -> Value:
        low, high = (self._value(bound, c) for bound in bounds)
        if not all(isinstance(end, Fraction) and end.denominator == 1 for end in (low, high)):
            raise Undefined("bounds that are no whole numbers")
        inside = sum(isinstance(n, Call) and n.name in ("sum", "prod") for n in walk(body))
        if high - low > (MOST_TERMS, MOST_OUTER_TERMS, 0)[min(inside, 2)]:
            raise Unsized("a long sum")
        total: Value = Fraction(name == "prod")
        for k in range(int(low), int(high) + 1):
            one = replace(self, unknowns={**self.unknowns, index: Fraction(k)})._value(body, c)
            exact = isinstance(total, Fraction) and isinstance(one, Fraction)
            if exact and _bits(total) + _bits(one) > EXACT_BITS:
                raise Unsized("a long rational")
            left, right = (total, one) if exact else (real(total, c), real(one, c))
            total = left + right if name == "sum" else left * right
        return total

    def _fold(self, nodes: tuple[Node, ...], c: Any, join: Callable[[Any, Any], Any]) -> Value:
        total = self._value(nodes[0], c)
        for node in nodes[1:]:
            value = self._value(node, c)
            if isinstance(total, Fraction) and isinstance(value, Fraction):
                if _bits(total) + _bits(value) > EXACT_BITS:
                    raise Unsized("a long rational")
                total = join(total, value)
            else:
                total = _bounded(join(real(total, c), real(value, c)))
        return total


@cache
def _context(digits: int) -> Any:
    context: Any = mpmath.MPContext()
    context.dps = digits
    return context


def real(value: Value, context: Any) -> Any:
    """The value as a number of the context."""
    if isinstance(value, Fraction):
        return context.mpf(value.numerator) / value.denominator
    return value


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        return value
    for part in (value.real, value.imag):
        if not mpmath.isfinite(part):
            raise Undefined("not finite")
        if part and abs(mpmath.mag(part)) > LARGEST_EXPONENT:
            raise Unsized("a large exponent")
    return value.real if not value.imag else value


def _added(a: Value, b: Value) -> Value:
    """The sum; Unsized where the smaller one would vanish: nothing may be lost unseen."""
    if not isinstance(a, Fraction) and a and b and abs(mpmath.mag(a) - mpmath.mag(b)) > a.context.prec - 20:
        raise Unsized("a sum of very different sizes")
    return a + b


def _power(base: Value, exponent: Value, c: Any) -> Value:
    if isinstance(exponent, Fraction):
        if base == 0:
            if exponent <= 0:
                raise Undefined("a power of zero")
            return Fraction(0)
        if isinstance(base, Fraction) and (exact := _exact_power(base, exponent)) is not None:
            return exact
        return _rational_power(base, exponent, c)
    if base == 0:
        raise Undefined("a power of zero")
    if isinstance(base, Fraction) and base == 1:
        return base
    return _exponential(exponent, c.log(real(base, c)), c)


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """The rational power, if it is rational and short; Unsized if it is an integer power too large for digits."""
    if abs(base) == 1 and exponent.denominator == 1:
        return Fraction(1) if base == 1 or exponent.numerator % 2 == 0 else Fraction(-1)
    if exponent.denominator == 1:
        if abs(exponent) * _bits(base) > EXACT_BITS:
            if abs(exponent) * abs(math.log2(abs(base)) if _bits(base) < 900 else _bits(base)) > LARGEST_EXPONENT:
                raise Unsized("a power")
            return None
        return base**exponent.numerator
    root = exponent.denominator
    if root > 60 or _bits(base) > 2000 or (base < 0 and root % 2 == 0):
        return None
    top, bottom = _integer_root(abs(base.numerator), root), _integer_root(base.denominator, root)
    if top is None or bottom is None:
        return None
    return _exact_power(Fraction(-top if base < 0 else top, bottom), Fraction(exponent.numerator))


def _integer_root(value: int, degree: int) -> int | None:
    guess = round(mpmath.mpf(value) ** (mpmath.mpf(1) / degree)) if value < 2**50 else _newton(value, degree)
    return guess if guess**degree == value else None


def _newton(value: int, degree: int) -> int:
    guess = 1 << (value.bit_length() // degree + 1)
    while True:
        better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess
        guess = better


def _rational_power(base: Value, exponent: Fraction, c: Any) -> Value:
    number = real(base, c)
    if not number.imag and number.real < 0 and exponent.denominator % 2 == 1:  # the real root, as in school
        size = _exponential(exponent, c.log(-number.real), c)
        return -size if exponent.numerator % 2 else size
    return _exponential(exponent, c.log(number), c)


def _exponential(exponent: Value, logarithm: Any, c: Any) -> Any:
    if abs(mpmath.mag(real(exponent, c))) > 80:
        raise Unsized("an exponent")
    power = real(exponent, c) * logarithm
    if power and mpmath.mag(power) > 23:
        raise Unsized("a power")
    # A whole power of a complex or negative number has no rounding in its angle when multiplied out.
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and abs(exponent) < 2000:
        return c.exp(logarithm) ** int(exponent)
    return c.exp(power)


def _called(name: str, args: list[Value], c: Any, common_log: bool) -> Value:
    if name in _EXACT:
        return _EXACT[name](args, c)
    if name in ("log", "ln"):
        return _logarithm(args[0], Fraction(10) if name == "log" and common_log else None, c)
    if name == "logbase":
        return _logarithm(args[0], args[1], c)
    if name not in _SMOOTH:
        raise Undefined(name)
    number = real(args[0], c)
    if number and mpmath.mag(number) > (20 if name in ("sinh", "cosh", "tanh") else 2000):
        raise Unsized("an argument")
    return _bounded(getattr(c, _SMOOTH[name])(number))


_SMOOTH = {name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")} | {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot",
}  # fmt: skip


def _logarithm(value: Value, base: Value | None, c: Any) -> Value:
    if value == 0 or (base is not None and (base == 0 or base == 1)):
        raise Undefined("a logarithm")
    if value == 1:
        return Fraction(0)
    if isinstance(value, Fraction) and isinstance(base, Fraction):
        power = _rational_log(value, base)
        if power is not None:
            return power
    top = c.log(real(value, c))
    return top if base is None else top / c.log(real(base, c))


def _rational_log(value: Fraction, base: Fraction) -> Fraction | None:
    """The logarithm where it is a whole number."""
    if value <= 0 or base <= 0 or _bits(value) > 4000:
        return None
    near = round(float(mpmath.log(mpmath.mpf(value.numerator) / value.denominator)
                       / mpmath.log(mpmath.mpf(base.numerator) / base.denominator)))  # fmt: skip
    return Fraction(near) if abs(near) < 4000 and base**near == value else None


def _absolute(args: list[Value], c: Any) -> Value:
    return abs(args[0])


@lru_cache(maxsize=64)
def _product_up_to(n: int) -> Fraction:
    return Fraction(math.factorial(n))


def _factorial(args: list[Value], c: Any) -> Value:
    n = args[0]
    if isinstance(n, Fraction) and n.denominator == 1:
        if n < 0:
            raise Undefined("a factorial")
        if n <= 5000:
            return _product_up_to(int(n))
    number = real(n, c)
    if abs(number) > 400_000:
        raise Unsized("a factorial")
    return _bounded(c.gamma(number + 1) if abs(number) < 1000 else c.exp(c.loggamma(number + 1)))


def _binomial(args: list[Value], c: Any) -> Value:
    n, k = args
    whole = all(isinstance(a, Fraction) and a.denominator == 1 for a in args)
    if whole and 0 <= n <= 20_000:
        return Fraction(math.comb(int(n), int(k))) if k >= 0 else Fraction(0)
    if abs(real(n, c)) > 10_000 or abs(real(k, c)) > 10_000:
        raise Unsized("a binomial coefficient")
    return _bounded(c.binomial(real(n, c), real(k, c)))


def _floor(args: list[Value], c: Any) -> Value:
    return Fraction(math.floor(_as_rational(args[0], c)))


def _ceil(args: list[Value], c: Any) -> Value:
    return Fraction(math.ceil(_as_rational(args[0], c)))


def _as_rational(value: Value, c: Any) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if value.imag or mpmath.mag(value.real) > 10_000:
        raise Unsized("rounding")
    nearest = c.nint(value.real)
    if abs(value.real - nearest) < mpmath.mpf(10) ** (-c.dps // 2):
        return Fraction(int(nearest))
    return Fraction(int(c.floor(value.real * 2)), 2)


def _whole(args: list[Value]) -> list[int]:
    if not all(isinstance(a, Fraction) and a.denominator == 1 for a in args):
        raise Undefined("not whole numbers")
    return [int(a) for a in args]


_EXACT: dict[str, Callable[[list[Value], Any], Value]] = {
    "abs": _absolute,
    "factorial": _factorial,
    "binom": _binomial,
    "floor": _floor,
    "ceil": _ceil,
    "gcd": lambda args, c: Fraction(math.gcd(*_whole(args))),
    "lcm": lambda args, c: Fraction(math.lcm(*_whole(args))),
    "min": lambda args, c: min(args, key=lambda a: real(a, c)),
    "max": lambda args, c: max(args, key=lambda a: real(a, c)),
}
