import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.track.text import one_line, storable, visible

ANY = st.text(st.characters())


@settings(deadline=None, max_examples=50)
@given(ANY)
def test_visible_text_cannot_steer(text):
    shown = visible(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode("utf-8")


def test_every_control_character_is_shown():
    assert visible("".join(map(chr, range(32)))) == "".join(
        chr(c) if c in (9, 10) else f"\\x{c:02x}" for c in range(32)
    )


@settings(deadline=None, max_examples=50)
@given(ANY, st.integers(1, 80))
def test_one_line_is_one_line_of_the_width(text, width):
    line = one_line(text, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1


@settings(deadline=None, max_examples=50)
@given(ANY)
def test_storable_text_is_utf8_and_stays_itself(text):
    stored = storable(text)
    assert storable(stored) == stored
    assert stored == text or any("\ud800" <= c <= "\udfff" for c in text)
