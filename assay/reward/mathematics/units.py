r"""Units and their conversion: ``cm``, ``km/h``, ``\text{ square feet}``, ``%``, degrees, dollars, and things counted.

A unit is a factor and the dimensions that it has. Words that are no known unit ("apples") are dimensions of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

_TABLE = """
length: mm millimeter millimetre 1/1000; cm centimeter centimetre 1/100; dm decimeter decimetre 1/10; m meter metre 1;
 km kilometer kilometre 1000; in inch 127/5000; ft foot feet 381/1250; yd yard 1143/1250; mi mile 201168/125
mass: mg milligram 1/1000000; g gram gm 1/1000; kg kilogram kilo 1; lb lbs pound 45359237/100000000;
 oz ounce 45359237/1600000000; ton tonne 1000
time: ms millisecond 1/1000; s sec second 1; min minute 60; h hr hour 3600; day 86400; week 604800; month 2629746;
 year yr 31556952; decade 315569520; century centuries 3155695200
volume: ml mL milliliter millilitre 1/1000; cl centiliter 1/100; l L liter litre 1; gallon gal 473176473/125000000;
 quart 473176473/500000000; pint 473176473/1000000000; cup 473176473/2000000000
money: dollar USD buck 1; cent ¢ 1/100; dime 1/10; quarter 1/4; nickel 1/20
euro: euro € EUR 1
sterling: £ GBP 1; pence penny pennies 1/100
percent: % percent percentage 1
angle: degree deg ° 1; rad radian 0
celsius: celsius 1
fahrenheit: fahrenheit 1
kelvin: kelvin K 1
current: A amp ampere 1
voltage: V volt 1
power: W watt 1; kW kilowatt 1000
energy: J joule 1; kJ kilojoule 1000; cal calorie 523/125; kcal 4184
force: N newton 1
frequency: Hz hertz 1
amount: mol mole 1
data: bit 1/8; byte 1; kilobyte KB 1000; megabyte MB 1000000
"""
MEASURES = frozenset(re.findall(r"^(\w+):", _TABLE, re.MULTILINE))
"""Dimensions that are measured, not counted."""
_FILLER = frozenset(
    re.findall(
        r"\w+", "unit total item the of a an in each exactly altogether all away only left value answer about ways way"
    )
)
_SPEEDS = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h", "cc": "cm^3", "sqft": "ft^2", "sqm": "m^2"}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_MATH = re.compile(
    r"sin|cos|tan|ln|log|pi|sqrt|exp|or|and|if|where|for|with|not|mod|infinity|inf|is|theta|alpha|beta|solutions?"
)
_WORD = r"[A-Za-z°¢€£µ]+\.?"
_TRAILING = re.compile(
    r"(?:\s*(?:\\text\s*\{[^{}]*\}|\\%|%|\\\$|\^\s*\{?\s*\\circ\s*\}?|\\degree|°|€|£|¢)"
    r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?(?:\s*(?:/|\\cdot|\*)(?=\s*\\text))?)+$"
)
_PLAIN = re.compile(
    r"(?<=[\d)}!])\s*(?P<unit>(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:[A-Za-z]{2,}\.?|[mgslhLJNVWAK])(?:\s*\^\s*\{?[23]\}?)?"
    r"(?:\s*(?:/|\bper\b|\s)\s*[A-Za-z]+(?:\s*\^\s*\{?[23]\}?)?)*)$"
)
_ANGLE = re.compile(r"(?:sin|cos|tan|cot|sec|csc)\b[^+=]*\^\s*\{?\s*\\circ\s*\}?\s*\)?$")
_TEMPERATURE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*)?([CF])\s*\}?$")
_CURRENCY = re.compile(r"^(?P<sign>[-+]?)\s*(?P<mark>\\\$|\$|€|£|USD|US\$|Rs\.?|₹)\s*(?P<rest>[-+]?[\d.(\\].*)$")


@dataclass(frozen=True)
class Unit:
    """``factor`` times the base unit of its dimensions; a factor of 0 is an unknown one (radians)."""

    factor: Fraction
    dimensions: tuple[tuple[str, int], ...]

    @property
    def is_percent(self) -> bool:
        """Is it a percent sign?"""
        return self.dimensions == (("percent", 1),)

    @property
    def is_angle(self) -> bool:
        """Is it a degree or a radian?"""
        return self.dimensions == (("angle", 1),)


@cache
def _known() -> dict[str, tuple[Fraction, str]]:
    table = {}
    for line in _TABLE.replace("\n ", " ").strip().splitlines():
        dimension, _, units = line.partition(":")
        for unit in units.split(";"):
            *names, factor = unit.split()
            table |= {name: (Fraction(factor), dimension) for name in names}
    return table


def _lookup(word: str) -> tuple[Fraction, str] | None:
    for spelling in (word, word.lower()):
        for name in (spelling, spelling.removesuffix("s"), spelling.removesuffix("es")):
            if name and name in _known() and not (len(name) == 1 and name != spelling):
                return _known()[name]
    return None


def is_known(word: str) -> bool:
    """Is it a unit of measure?

    >>> is_known("inches"), is_known("apples")
    (True, False)
    """
    return _lookup(word) is not None


def parse_unit(text: str) -> Unit | None:
    r"""The unit that a text names; ``None`` for an empty one and for words that only fill.

    >>> parse_unit("km/h") == parse_unit("kilometers per hour"), parse_unit(r"\text{ cm}^2").dimensions
    (True, (('length', 2),))
    >>> parse_unit("apples").dimensions, parse_unit("units")
    ((('apple', 1),), None)
    """
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", " degree ", text.replace(r"\$", " dollar "))
    text = re.sub(r"degrees?\s*C\b|\bC$", " celsius ", text) if "degree" in text else text
    text = re.sub(r"degrees?\s*F\b|\bF$", " fahrenheit ", text) if "degree" in text else text
    text = re.sub(r"degrees?\s+(celsius|fahrenheit)", r" \1 ", text, flags=re.IGNORECASE)
    for short, long in _SPEEDS.items():
        text = re.sub(rf"\b{short}\b", long, text)
    factor, counts, sign, power = Fraction(1), Counter[str](), 1, 1
    for mark in re.finditer(rf"/|{_WORD}|%|\^\s*\{{?\s*(-?\d)|.", text):
        word = mark.group().rstrip(".")
        if word == "/" or word.lower() in ("per", "an hour", "a") or (word == "an" and counts):
            sign = -1 if word == "/" or word.lower() == "per" or counts else sign
        elif word.lower() in _POWERS and word.lower() not in ("squared", "cubed"):
            power = _POWERS[word.lower()]
        elif word.startswith("^") or word.lower() in ("squared", "cubed"):
            if counts:
                last, was = list(counts.items())[-1]
                exponent = int(mark[1]) if mark[1] else _POWERS[word.lower()]
                found = _last_factor(text[: mark.start()])
                counts[last] = was + (abs(was) // was if was else 1) * (exponent - 1)
                factor *= found ** (exponent - 1) if found else 1
        elif re.fullmatch(_WORD, word) or word == "%":
            known = _lookup(word)
            if known is None and (word.lower().removesuffix("s") in _FILLER):
                continue
            step, dimension = known or (Fraction(1), word.lower().removesuffix("s"))
            if step == 0:
                return Unit(Fraction(0), ((dimension, 1),))
            factor *= step ** (sign * power)
            counts[dimension] += sign * power
            sign, power = 1, 1
    dimensions = {name: count for name, count in counts.items() if count}
    if "volume" in dimensions:  # a liter is a cubic decimeter
        litres = dimensions.pop("volume")
        dimensions["length"] = dimensions.get("length", 0) + 3 * litres
        factor *= Fraction(1, 1000) ** litres
    return Unit(factor, tuple(sorted(dimensions.items()))) if dimensions else None


def _last_factor(text: str) -> Fraction | None:
    words = re.findall(_WORD, text)
    known = _lookup(words[-1]) if words else None
    return known[0] if known else None


def split_unit(text: str) -> tuple[str, str]:
    r"""A text in plain spelling -> the quantity and the text of its unit, empty when there is none.

    >>> split_unit(r"10\text{ cm}"), split_unit("35%"), split_unit(r"\$18"), split_unit("6x")
    (('10', '\\text{ cm}'), ('35', '%'), ('18', '\\$'), ('6x', ''))
    >>> split_unit("12 square feet"), split_unit("2 pi"), split_unit("-$5")
    (('12', 'square feet'), ('2 pi', ''), ('-5', '\\$'))
    """
    unit = ""
    if money := _CURRENCY.match(text):
        text, unit = money["sign"] + money["rest"], money["mark"].replace("US$", r"\$")
        unit = r"\$" if unit == "$" else unit
    if scale := _TEMPERATURE.search(text):
        return text[: scale.start()].strip(), {"C": "celsius", "F": "fahrenheit"}[scale[1]]
    if _ANGLE.search(text):  # sin 30 degrees is a number
        return text, unit
    if (trailing := _TRAILING.search(text)) and text[: trailing.start()].strip():
        return text[: trailing.start()].rstrip(" \\"), f"{trailing.group().strip()} {unit}".strip()
    if (words := _PLAIN.search(text)) and not unit:
        first = re.split(r"[^A-Za-z]", words["unit"])[0]
        if not _MATH.match(first) and (len(first) > 3 or is_known(first) or first in _SPEEDS or first in _POWERS):
            return text[: words.start()].strip(), words["unit"]
    return text, unit


def units_in(text: str) -> list[Unit]:
    """The units of measure that a question names.

    >>> [u.dimensions for u in units_in("How long is the rod, in cm, if it weighs 2 kg?")]
    [(('length', 1),), (('mass', 1),)]
    """
    found: list[Unit] = []
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    pattern = rf"(?:\b(?:square|sq|cubic|cu)\s+)?[A-Za-z°¢€£%]+(?:\s*(?:/|\bper\b)\s*{_WORD})?(?:\s*\^\s*\{{?[23]\}}?)?"
    for match in re.finditer(pattern, text):
        words = [w for w in re.findall(r"[A-Za-z°¢€£%]+", match.group()) if w.lower() not in (*_POWERS, "per")]
        if not all(is_known(w) or w in _SPEEDS for w in words) or not words:
            continue
        short = all(len(w) == 1 or w in ("in", "min", "second", "cup") for w in words)
        if short and (words == ["in"] or not re.search(r"(?:\d\s*|\bin )\Z", text[: match.start()])):
            continue
        if (unit := parse_unit(match.group())) and unit not in found:
            found.append(unit)
    return found
