"""Verifiers of structure beyond the collected cases: options, shapes, laws, and what nobody may make them do."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import UserError
from assay.reward.constraints.constraint import constraints
from assay.reward.language_guess import guess, is_in, language_code, script_share
from assay.reward.languages import LANGUAGES
from assay.reward.prose import sentences, words
from assay.reward.strict_json import canonical_json, json_equal, read_json
from assay.reward.verifier import Case, Judgement, verifiers

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


def judge(
    name: str, completion: str, gold: Any = None, *, case: dict[str, Any] | None = None, **options: Any
) -> Judgement:
    return verifiers[name](options)(Case(completion=completion, gold=gold, **(case or {})))


@given(JSON)
def test_json_reads_back_what_it_spells_and_equals_itself_only(value: Any) -> None:
    again = read_json(canonical_json(value))
    assert json_equal(value, again)
    assert canonical_json(again) == canonical_json(value)
    assert not json_equal(value, [value])
    assert judge("json", canonical_json(value), canonical_json(value), place="bare").score == 1.0


@given(JSON, JSON)
def test_json_equality_is_symmetric_and_agrees_with_the_one_spelling(one: Any, other: Any) -> None:
    assert json_equal(one, other) == json_equal(other, one) == (canonical_json(one) == canonical_json(other))


@pytest.mark.parametrize("name", ["json", "tool_call", "ifeval", "format", "length", "repetition", "language", "row"])
@given(text=st.text(max_size=80))
@settings(deadline=None, max_examples=40)
def test_no_text_makes_a_verifier_raise(name: str, text: str) -> None:
    options = {"unit": "words", "max": 3} if name == "length" else {}
    columns = {"constraints": [{"id": "punctuation:no_comma"}], "kind": "json", "tests": {"schema": {}}}
    gold = {"name": "f", "arguments": {}} if name == "tool_call" else '{"a": 1}'
    assert judge(name, text, gold, case={"columns": columns}, **options).outcome in ("scored", "no_answer")


@pytest.mark.parametrize(
    "mark", ["[", "{", '{"a":', "```", "<tool_call>", "*", "[x", "P.S. ", '"', "a b ", "<think>", "a"]
)
@pytest.mark.parametrize("name", ["json", "tool_call", "ifeval", "format", "repetition", "language"])
def test_long_repeats_end(name: str, mark: str) -> None:
    rules = [
        {"id": "detectable_content:postscript", "kwargs": {"postscript_marker": "P.S."}},
        {"id": "detectable_content:number_placeholders", "kwargs": {"num_placeholders": 1}},
        {"id": "detectable_format:number_highlighted_sections", "kwargs": {"num_highlights": 1}},
        {"id": "length_constraints:number_sentences", "kwargs": {"num_sentences": 1, "relation": "at least"}},
    ]
    gold = {"name": "f", "arguments": {}} if name == "tool_call" else "{}"
    options = {"place": "prose"} if name == "json" else {}
    found = judge(name, mark * 20_000, gold, case={"columns": {"constraints": rules}}, **options)
    assert found.outcome in ("scored", "no_answer")


def test_json_in_prose_is_the_only_one_there_is() -> None:
    assert judge("json", 'It is {"a": 1}, I think.', '{"a": 1}', place="prose").score == 1.0
    assert judge("json", 'It is {"a": 1} or {"a": 2}.', '{"a": 1}', place="prose").score == 0.0
    assert judge("json", 'It is {"a": 1}; again {"a": 1.0}.', '{"a": 1}', place="prose").score == 1.0
    assert judge("json", "{'a'} {\"a\": 1}", '{"a": 1}', place="prose").score == 1.0
    assert judge("json", 'No: "{a}" [', '{"a": 1}', place="prose").score == 0.0


def test_a_schema_of_the_recipe_is_checked_when_it_is_read_and_the_rows_goes_before_it() -> None:
    with pytest.raises(UserError, match="the schema is invalid"):
        verifiers["json"]({"json_schema": {"type": "objekt"}})
    options = {"json_schema": {"type": "integer"}}
    assert judge("json", "5", **options).score == 1.0
    assert judge("json", "5", case={"columns": {"schema": '{"type": "string"}'}}, **options).score == 0.0
    assert judge("json", "5").outcome == "verifier_error"
    assert judge("json", "5", parse_only=True).score == 1.0
    assert judge("json", "5", match="equal").outcome == "verifier_error"


@pytest.mark.parametrize(
    ("columns", "gold"),
    [
        ({"constraints": [{"id": "punctuation:no_comma", "kwargs": {}}]}, None),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"keyword": None}]}, None),
        ({}, json.dumps([{"instruction_id": ["punctuation:no_comma"], "kwargs": [None]}])),
        ({"constraints": '[{"id": "punctuation:no_comma"}]'}, "ignored"),
    ],
)
def test_instructions_are_read_in_every_spelling(columns: dict[str, Any], gold: Any) -> None:
    assert judge("ifeval", "no mark", gold, case={"columns": columns}).score == 1.0
    assert judge("ifeval", "a, mark", gold, case={"columns": columns}).score == 0.0


def test_the_share_of_instructions_is_an_option() -> None:
    rules = [{"id": "punctuation:no_comma"}, {"id": "change_case:english_lowercase"}]
    assert judge("ifeval", "No mark", case={"columns": {"constraints": rules}}, score="share").score == 0.5


def test_every_instruction_says_what_it_checks() -> None:
    assert len(list(constraints)) > 40
    assert all(constraints[name].check.__doc__ for name in constraints)


@given(st.floats(0.1, 3), st.floats(0.1, 3), st.integers(1, 80))
def test_cosine_falls_from_short_to_long_and_wrong_answers_rise(short: float, drop: float, tokens: int) -> None:
    options = {
        "correct_by": "number",
        "right_short": short + drop,
        "right_long": short,
        "wrong_short": -2.0,
        "wrong_long": 0.0,
    }
    at = {"tokens": tokens, "max_tokens": 80}
    share = (1 + math.cos(math.pi * tokens / 80)) / 2
    right = judge("length", "7", 7, case=at, **options)
    wrong = judge("length", "8", 7, case=at, **options)
    assert right.score == pytest.approx(short + drop * share)
    assert wrong.score == pytest.approx(-2.0 * share)


def test_cosine_punishes_the_cap_and_passes_on_what_the_inner_verifier_could_not_judge() -> None:
    at = {"tokens": 80, "max_tokens": 80, "finish": "length"}
    assert judge("length", "7", 7, case=at, correct_by="number").score == -10.0
    assert judge("length", "7", "seven", case=at, correct_by="number").outcome == "verifier_error"
    assert judge("length", "7", 7, correct_by="number").outcome == "verifier_error"  # lengths unknown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "words"}, "needs min or max"),
        ({"min": 3, "max": 2}, "min 3 is above max 2"),
        ({"max": 3, "buffer": 0.5}, "does not read 'buffer'"),
        ({"shape": "overlong", "max": 3}, "does not read 'max'"),
        ({"shape": "cosine"}, "needs correct_by"),
        ({"correct_by": "maht"}, "did you mean 'math'"),
        ({"correct_by": "number", "correct_options": {"extrct": "last"}}, "did you mean 'extract'"),
        ({"unit": "pages", "max": 1}, "unit"),
    ],
)
def test_lengths_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        verifiers["length"](options)
    assert message in str(error.value)


def test_tokens_are_counted_by_the_sampler_or_not_at_all() -> None:
    assert judge("length", "a b", max=5, case={"tokens": 5}).score == 1.0
    assert judge("length", "a b", max=5, case={"tokens": 6}).score == 0.0
    assert judge("length", "a b", max=5).outcome == "verifier_error"


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 4))
def test_repetition_is_the_share_of_ngrams_that_stood_before(letters: list[str], n: int) -> None:
    grams = [tuple(letters[i : i + n]) for i in range(len(letters) - n + 1)]
    repeated = sum(gram in grams[:place] for place, gram in enumerate(grams))
    expected = -repeated / len(grams) if grams else 0.0
    assert judge("repetition", " ".join(letters), n=n).score == pytest.approx(expected)


def test_repetition_has_a_free_share_and_sees_loops_of_one_character() -> None:
    assert judge("repetition", "a b a b a", n=2, free=0.5).score == 0.0
    assert judge("repetition", "a b a b a", n=2, free=0.25).score == pytest.approx(-1 / 3)
    assert judge("repetition", "ha" + "a" * 100).score == -1.0
    assert judge("repetition", "-" * 100, penalty=0.5).score == -0.5
    assert judge("repetition", "你好吗" * 5, n=3).score == pytest.approx(-10 / 13)


@pytest.mark.parametrize(
    ("language", "completion", "score"),
    [
        ("en", "The answer is that we were not there.", 1.0),
        ("en", "Das ist nicht der Fall, und wir sind nicht da.", 0.0),
        ("en", "So the answer 是 here", 0.8),
        ("zh", "答案是这个", 1.0),
        ("zh", "设 $x = 1$, 那么 x 是一", 1.0),
        ("zh", "So the answer is seven", 0.0),
        ("ja", "答えは四です", 1.0),
        ("ru", "Это ответ: `print(x)`", 1.0),
        ("ru", "Це є відповідь, але я не знаю.", 0.0),
        ("hi", "यह उत्तर है", 1.0),
        ("ko", "정답은 seven 입니다", 2 / 3),
    ],
)
def test_language_share(language: str, completion: str, score: float) -> None:
    assert judge("language", completion, language=language).score == pytest.approx(score)


def test_language_options() -> None:
    mixed = "<think>让我想想</think>The answer is four."
    assert judge("language", mixed, scope="answer").score == 1.0
    assert judge("language", mixed, threshold=0.9).score == 0.0
    assert judge("language", "Das ist es.", column="lang", case={"columns": {"lang": "German"}}).score == 1.0
    assert judge("language", "Hm.", column="lang", case={"columns": {"lang": "Klingon"}}).outcome == "verifier_error"
    assert judge("language", "$1 + 1 = 2$").outcome == "no_answer"
    with pytest.raises(UserError, match="unknown language"):
        verifiers["language"]({"language": "Klingon"})


SAMPLES = {
    "en": "The children were not at home when we came.", "es": "Los niños no estaban en la casa cuando llegamos.",
    "fr": "Les enfants ne sont pas dans la maison.", "de": "Die Kinder sind nicht im Haus, aber ich bin da.",
    "it": "I bambini non sono nella casa, ma il cane è qui.", "pt": "As crianças não estão em casa, mas o cão está.",
    "nl": "De kinderen zijn niet in het huis, maar ik ben er.", "sv": "Barnen är inte i huset, men jag har en hund.",
    "fi": "Lapset ovat talossa, mutta koira ei ole.", "pl": "Dzieci nie są w domu, ale pies jest.",
    "tr": "Çocuklar evde değil, ama köpek var.", "vi": "Những đứa trẻ không có trong nhà của tôi.",
    "ru": "Дети не дома, но собака здесь, и это хорошо.", "uk": "Діти не вдома, але собака є тут.",
    "bg": "Децата не са в къщата, но кучето е тук.", "ar": "هذا هو البيت الذي في المدينة.",
    "fa": "این خانه را برای شما است و ما می دانیم.", "ur": "یہ گھر شہر میں ہے اور وہ نہیں ہے۔",
    "hi": "यह घर शहर में है और वह नहीं है।", "mr": "हे घर शहरात आहे आणि ते मोठे आहे.", "ja": "子供は家にいません。",
    "zh": "孩子不在家里。", "ko": "아이들은 집에 없습니다.", "th": "เด็กไม่อยู่บ้าน", "el": "Τα παιδιά δεν είναι σπίτι.",
}  # fmt: skip


@pytest.mark.parametrize("code", SAMPLES)
def test_each_language_is_told_from_all_others(code: str) -> None:
    assert guess(SAMPLES[code]) == code
    assert [other for other in SAMPLES if is_in(SAMPLES[code], other)] == [code]


def test_languages_have_codes_and_names() -> None:
    assert all(
        language_code(language.name) == code == language_code(code.upper()) for code, language in LANGUAGES.items()
    )
    assert script_share("", "ru") == 1.0


@given(st.lists(st.sampled_from(["Dogs run.", "Is it so?", "No!", "Dr. Lee paid 3.50.", "So we left…"]), max_size=6))
def test_sentences_are_found_again_when_joined(parts: list[str]) -> None:
    assert sentences(" ".join(parts)) == parts
    assert len(words(" ".join(parts))) == sum(len(words(part)) for part in parts)


def test_reasoning_gym_gives_no_credit_for_containing_the_answer() -> None:
    import reasoning_gym

    [entry] = reasoning_gym.create_dataset("gcd", size=1, seed=1)
    columns = {**entry, "data_source": "reasoning_gym:gcd"}
    near = f"<answer>1{entry['answer']}</answer>"
    assert judge("reasoning_gym", near, case={"columns": columns}).score == 0.0
    assert 0 < (judge("reasoning_gym", near, case={"columns": columns}, partial=True).score or 0) < 1
    assert judge("reasoning_gym", f"<answer>{entry['answer']}</answer>", case={"columns": columns}).score == 1.0
