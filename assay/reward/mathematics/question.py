"""The wording of a question, which settles what the texts of two answers leave open."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from assay.reward.mathematics.numbers import Domain

ORDER = re.compile(
    r"\b(?:ascending|descending|increasing|decreasing)\s+order"
    r"|from (?:least|greatest|smallest|largest)|\brespectively\b",
    re.IGNORECASE,
)
ROUNDED = re.compile(r"\bround|nearest|approximat|decimal place|significant", re.IGNORECASE)
REDUCED = re.compile(
    r"lowest terms|simplest form|reduced form|irreducible|fully simplified|fully reduced", re.IGNORECASE
)
_POSITIVE = re.compile(r"\bpositive\b|> ?0|\\gt ?0", re.IGNORECASE)
_INTEGER = re.compile(r"\b(?:integers?|natural numbers?|whole numbers?)\b", re.IGNORECASE)
LARGE = re.compile(r"\b(?:thousand|million|billion|trillion)s?\b", re.IGNORECASE)
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

    @property
    def asks_all(self) -> bool:
        """Is it for all values, and not for a point or an interval?"""
        return self.says(_ALL) and not self.says(_TUPLE) and not self.says(ORDER)
