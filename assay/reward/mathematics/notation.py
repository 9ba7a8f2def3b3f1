r"""One spelling of many: Unicode, LaTeX decoration, dollars, bold and digit groups -> plain LaTeX.

What is left means the same and is read by ``tokens``. ``\text{...}`` stays, because it holds units and words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_GREEK = {
    unicodedata.lookup(f"GREEK SMALL LETTER {name.upper()}"): rf"\{name} "
    for name in ("alpha", "beta", "gamma", "delta", "theta", "mu", "pi", "rho", "sigma", "phi", "omega")
} | {"λ": r"\lambda ", "Δ": r"\Delta ", "Ω": r"\Omega "}
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "÷": "/", "⁄": "/", "∕": "/",
    "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "√": r"\sqrt ", "∛": r"\sqrt[3]", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
    "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^{\circ}", "º": r"^{\circ}",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "′": "'", "∣": "|", "…": r"\ldots ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "\u200b": "", "\u2061": "", "\ufeff": "", "\u00ad": "", "∖": r"\setminus ",
}  # fmt: skip
_UNICODE = str.maketrans(_GREEK | _SIGNS)
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|boldmath|bf|rm|it|tt|small|large|Large|LARGE|[hH]uge)"
    r"(?![A-Za-z])\.?"
)
_SPACES = re.compile(
    r"(?<!\\)\\(?:[,;:! ]|qquad(?![A-Za-z])|quad(?![A-Za-z])|hspace\{[^{}]*\}|allowbreak(?![A-Za-z]))|~"
)
_GROUPED = re.compile(r"(?<=\d)(?:\{,\}|,\s*\\[!,;:]|\\[!,;:]\s*,|\\[!,;:]|[\u00a0\u2009\u202f])\s*(?=\d{3}(?!\d))")
_SPACED = re.compile(r"(?<![\d.,/])(\d{1,3})((?: \d{3})+)(?![\d./,]|\s*/)")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*10(?=\s*(?:\^|\*\*))")
_ROW_SPACE = re.compile(r"\\\\\s*\[-?[\d.]+\s*(?:pt|em|ex|mm|cm)\]")
_COLOUR = re.compile(r"\\(?:text)?colou?r\s*\{[^{}]*\}")
_POWER_IN_TEXT = re.compile(r"\\text\s*\{([^{}^]*)\^\{(\d)\}\s*\}")
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|textbf|hat|widehat|vec|overrightarrow|bar|bf)\s*"
    r"(?:\{\s*(?:\\(?:mathbf|boldsymbol|bm|hat|textbf|mathrm)\s*\{\s*)?\\?([ijk])(?:math)?\s*\}{1,2}|\\([ij])math(?![A-Za-z])|\s([ijk])\b)"
)
_SCALED = re.compile(
    r"(?<=\d)\s*(?:\\text\s*\{\s*(?P<inside>thousand|million|billion|trillion)\b|(?P<plain>thousand|million|billion|trillion)\b)"
)
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_WRAPPED = re.compile(
    r"\\(?:underline|ensuremath|mathbf|boldsymbol|bm|mathit|mathnormal|mathsf|mathtt|textnormal|emph)\s*\{([^{}]*)\}"
)
_TEXTS = re.compile(r"\\(?:textbf|textit|textrm|textsf|texttt|mbox|hbox|mathrm|operatorname\*?|textsc)(?![A-Za-z])")
_PLAIN_TEXT = re.compile(r"\\text\s*\{\s*([-+]|[-+]?[\d.,/ ]*\d|[A-Za-z]|\(?[-+\d.,/ ]*\d\)?|pi|e)\s*\}")
_RENAMED = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\leq": r"\le", r"\geq": r"\ge", r"\leqslant": r"\le", r"\geqslant": r"\ge", r"\neq": r"\ne", r"\lt": "<",
    r"\gt": ">", r"\simeq": r"\approx", r"\varnothing": r"\emptyset", r"\lbrace": r"\{", r"\rbrace": r"\}",
    r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|", r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "(",
    r"\rparen": ")", r"\ast": "*", r"\bullet": r"\cdot", r"\div": "/", r"\dots": r"\ldots", r"\cdots": r"\ldots",
    r"\infin": r"\infty", r"\varphi": r"\phi", r"\vartheta": r"\theta", r"\varepsilon": r"\epsilon", r"\ge": r"\ge",
    r"\colon": ":", r"\backslash": r"\setminus", r"\R": r"\mathbb{R}", r"\Z": r"\mathbb{Z}", r"\degree": r"^{\circ}",
    r"\land": r"\text{ and }", r"\wedge": r"\text{ and }", r"\lor": r"\text{ or }", r"\vee": r"\text{ or }",
    r"\percent": r"\%", r"\euro": "€", r"\pounds": "£", r"\textdollar": r"\$", r"\textdegree": r"^{\circ}",
}  # fmt: skip
_COMMAND = re.compile(r"\\[A-Za-z]+")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\$\$|(?<!\\)\$(?!\s*\d[\d.,]*(?!.*\$))")


def plain(text: str) -> str:
    r"""The text in one spelling.

    >>> plain(r"$\left( 3,\, 2.5 \right)$"), plain("４２"), plain("x² ≥ −5"), plain(r"22,\! 430,\! 000")
    ('( 3, 2.5 )', '42', 'x^{2} \\ge -5', '22430000')
    >>> plain("3½"), plain(r"\text{27}"), plain(r"**\dfrac{1}{2}**.")
    ('3\\frac{1}{2}', '27', '\\frac{1}{2}')
    """
    text = _unicode(text)
    text = _GROUPED.sub("", text)
    text = _ROW_SPACE.sub(r"\\\\", _TIMES_TEN.sub(r"\\times 10", text))
    text = _COMMAND.sub(lambda found: _RENAMED.get(found.group(), found.group()), text)
    text = _SPACES.sub(" ", _DROPPED.sub("", _COLOUR.sub("", text)))
    text = _SPACED.sub(lambda found: found.group().replace(" ", ""), text)
    text = _TEXTS.sub(r"\\text", text)
    marked = [next(filter(None, found)) for found in _UNIT_VECTOR.findall(text)]
    if {"j", "k"} & {*marked}:  # alone, a bold i is the imaginary unit
        text = _UNIT_VECTOR.sub(lambda found: rf"\hat{{{found[1] or found[2] or found[3]}}}", text)
    text = re.sub(r"\bper\s+cent\b", "percent", text)
    text = _WRAPPED.sub(r"{\1}", text)
    text = _POWER_IN_TEXT.sub(r"\\text{\1}^{\2}", text.replace(r"\text{\$}", r"\$"))
    text = _PLAIN_TEXT.sub(r"\1", text)
    text = re.sub(r"\\text\s*\{\s*(\^\{\\circ\})\s*\}", r"\1", text)
    return _trimmed(_DELIMITERS.sub(" ", text))


def written_out(text: str) -> str:
    r"""The text with ``2 million`` written as a product.

    >>> written_out(r"2\text{ million dollars}"), written_out("3.5 billion")
    ('2\\times 10^{6}\\text{ dollars}', '3.5\\times 10^{9}')
    """

    def product(found: re.Match[str]) -> str:
        zeros = rf"\times 10^{{{_ZEROS[found['inside'] or found['plain']]}}}"
        return zeros + (r"\text{" if found["inside"] else "")

    return _SCALED.sub(product, text).replace(r"\text{}", "")


def _unicode(text: str) -> str:
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda found: "^{" + found.group().translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub("[₀-₉]+", lambda found: "_{" + found.group().translate(_SUBSCRIPTS) + "}", text)
    text = "".join(_fraction(c) if unicodedata.category(c) == "No" else c for c in text)
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE)).translate(_UNICODE)
    return "".join(str(int(c)) if c.isdecimal() and not c.isascii() else c for c in text)


def _fraction(character: str) -> str:
    parts = unicodedata.normalize("NFKC", character).split("⁄")
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else character


def _trimmed(text: str) -> str:
    """Without bold marks, quotes, fences and full stops around it."""
    for _ in range(6):
        before = text
        text = text.strip().strip("`\"'“”").strip()
        text = re.sub(r"^\*\*(?!\*)(.*?)\*\*$", r"\1", text, flags=re.DOTALL)
        text = re.sub(r"^(?:\*\*|__)\s*|\s*(?:\*\*|__)$", "", text)
        text = re.sub(r"(?<!\.)[.,;:]$", "", text)
        text = re.sub(r"^\{(.*)\}$", r"\1", text, flags=re.DOTALL) if _one_group(text) else text
        if before == text:
            break
    return " ".join(text.split())


def _one_group(text: str) -> bool:
    """Is the text one ``{...}`` from its first to its last character?"""
    if not text.startswith("{") or not text.endswith("}"):
        return False
    closes = next((position for position, depth in depths(text) if depth == 0), None)
    return closes == len(text) - 1


def depths(text: str) -> Iterator[tuple[int, int]]:
    r"""Positions of a text with the depth of brackets after each; ``\{`` counts as one, and so do environments.

    >>> [depth for _, depth in depths("(a[b])c")]
    [1, 1, 2, 2, 1, 0, 0]
    """
    depth, position = 0, 0
    while position < len(text):
        step = 1
        if text.startswith(r"\begin", position) and not text[position + 6 : position + 7].isalpha():
            depth, step = depth + 1, 6
        elif text.startswith(r"\end", position) and not text[position + 4 : position + 5].isalpha():
            depth, step = depth - 1, 4
        elif text.startswith((r"\langle", r"\rangle"), position):
            depth, step = depth + (1 if text[position + 1] == "l" else -1), 7
        else:
            step = 2 if text[position] == "\\" and text[position + 1 : position + 2] in ("{", "}") else 1
            character = text[position + step - 1]
            depth += (character in "([{") - (character in ")]}")
        position += step
        yield position - 1, depth


def split(text: str, separator: re.Pattern[str]) -> list[tuple[str, str]]:
    r"""Pieces of a text between separators outside of all brackets, each with the separator before it.

    >>> split("(1,2),3", re.compile(","))
    [('', '(1,2)'), (',', '3')]
    """
    level = dict(depths(text))
    pieces: list[tuple[str, str]] = []
    start, before = 0, ""
    for match in separator.finditer(text):
        if match.start() >= start and (match.start() == 0 or level.get(match.start() - 1, 1) == 0):
            pieces.append((before, text[start : match.start()]))
            start, before = match.end(), match.group()
    return [*pieces, (before, text[start:])]
