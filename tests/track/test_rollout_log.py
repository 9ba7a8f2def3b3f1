import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from track_helpers import group_of

from assay.errors import UserError
from assay.records import REWARDED, Group, Prompt, Rollout, Segment, Verdict
from assay.track.rollouts import RolloutLog, logged_steps, read, rows_of
from assay.track.text import storable

TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["", "\ud800", "a\x00b", "\x1b[2J", "שלום", "👩‍🚀", "\r\n"]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def groups(draw):
    n = draw(st.integers(0, 3))
    columns = draw(st.sampled_from([{}, {"answer": "7"}, {"answer": 7}, {"answer": ["a", "b"]}, {"other": "x"}]))
    content = draw(TEXT)
    prompt = Prompt(
        draw(TEXT), ({"role": "user", "content": content},), draw(TEXT), (1,), columns, draw(TEXT), draw(TEXT)
    )
    rollouts, verdicts = [], []
    for index in range(n):
        k = draw(st.integers(0, 4))
        tokens = tuple(draw(st.lists(st.integers(0, 200_000), min_size=k, max_size=k)))
        versions = tuple(draw(st.lists(st.integers(0, 9), min_size=k, max_size=k)))
        segments = (Segment("policy", tokens, (-1.0,) * k, versions), Segment("forced", (5,)))
        finish = draw(st.sampled_from(["stop", "length", "cancelled", "error"]))
        rollouts.append(Rollout(prompt.id, index, segments, finish, draw(TEXT)))
        outcome = draw(st.sampled_from(["scored", "no_answer", "verifier_error", "unavailable"]))
        reward = draw(FLOATS) if outcome in REWARDED else None
        parts = {draw(TEXT): draw(FLOATS | st.none()), "second": draw(FLOATS)}
        answer = draw(st.none() | TEXT)
        verdicts.append(Verdict(reward, outcome, parts, answer, 0.0, draw(TEXT), draw(st.none() | FLOATS)))
    return Group(prompt, tuple(rollouts), tuple(verdicts), draw(st.integers(0, 2**41)))


@settings(deadline=None, max_examples=50)
@given(st.lists(groups(), max_size=3), st.data())
def test_the_file_holds_exactly_the_groups(tmp_path_factory, batch, data):
    run = tmp_path_factory.mktemp("run")
    advantages = [data.draw(st.lists(FLOATS, min_size=len(g.rollouts), max_size=len(g.rollouts))) for g in batch]
    RolloutLog(run / "rollouts").write(12, batch, advantages)
    rows = read(run, 12)
    assert rows == rows_of(12, batch, advantages)
    pairs = [
        (g, r, v, a)
        for g, values in zip(batch, advantages, strict=True)
        for r, v, a in zip(g.rollouts, g.verdicts, values, strict=True)
    ]
    assert len(rows) == len(pairs)
    for row, (group, rollout, verdict, advantage) in zip(rows, pairs, strict=True):
        assert row.completion == storable(rollout.text)
        assert row.token_ids == rollout.token_ids
        assert (row.tokens, row.index, row.finish) == (len(rollout), rollout.index, rollout.finish)
        assert (row.reward, row.correct, row.outcome) == (verdict.reward, verdict.correct, verdict.outcome)
        assert row.parts == {storable(k): v for k, v in verdict.parts.items()}
        assert row.answer == (None if verdict.answer is None else storable(verdict.answer))
        assert (row.advantage, row.kind, row.admission) == (advantage, group.kind, group.admission)
        assert row.oldest_version == rollout.oldest_version
        assert row.truncated == (rollout.finish == "length")


def test_text_without_surrogates_is_left_alone():
    for text in ("", "a\x00b", "é", "e\u0301", "👩‍🚀", "\u202e"):
        assert storable(text) == text


def test_gold_and_question():
    group = group_of([("7", 1.0)])
    assert rows_of(1, [group])[0].gold == "7"
    assert rows_of(1, [group])[0].question == "What is 3 + 4?"
    assert rows_of(1, [group], gold="missing")[0].gold is None
    prompt = Prompt(
        "p",
        ({"role": "user", "content": [{"type": "text", "text": "parts"}]},),
        "t",
        (1,),
        {"reward_model": {"ground_truth": "42"}, "answer": {"b": [1]}},
    )
    nested = Group(prompt, (Rollout("p", 0, (), "stop", ""),), (Verdict(0.0, "scored"),))
    assert rows_of(1, [nested], gold="reward_model.ground_truth")[0].gold == "42"
    assert json.loads(rows_of(1, [nested])[0].gold or "") == {"b": [1]}
    assert rows_of(1, [nested])[0].question == "parts"


def test_the_same_rows_give_the_same_bytes_and_a_step_is_replaced(tmp_path):
    log = RolloutLog(tmp_path / "rollouts")
    first = log.write(3, [group_of([("7", 1.0)])], [[0.5]]).read_bytes()
    log.write(3, [group_of([("8", 0.0), ("", None)])], [[0.5, 0.0]])
    assert len(read(tmp_path, 3)) == 2
    assert log.write(3, [group_of([("7", 1.0)])], [[0.5]]).read_bytes() == first


def test_column_names_are_the_documented_ones(tmp_path):
    path = RolloutLog(tmp_path / "rollouts").write(12, [group_of([("7", 1.0)])])
    assert path.name == "step-000012.parquet"
    names = (
        "step phase admission prompt_id problem source prompt question gold index completion token_ids "
        "tokens finish reward correct outcome answer message parts advantage oldest_version kind truncated"
    )
    assert pq.read_schema(path).names == names.split()


def test_lengths_that_do_not_match_are_refused(tmp_path):
    group = group_of([("7", 1.0), ("8", 0.0)])
    for advantages in ([], [[0.5]], [[0.5, 0.5], []]):
        with pytest.raises(ValueError, match="zip"):
            rows_of(1, [group], advantages)


def test_roll_back_leaves_earlier_steps_and_no_halves(tmp_path):
    log = RolloutLog(tmp_path / "rollouts")
    for step in (1, 2, 3, 11):
        log.write(step, [group_of([("7", 1.0)])])
    log.write(2, [group_of([("7", 1.0)])], phase="eval")
    log.write(3, [group_of([("7", 1.0)])], phase="eval")
    (tmp_path / "rollouts" / ".step-000004.parquet.tmp").write_bytes(b"half")
    log.truncate_after(2)
    assert logged_steps(tmp_path) == [1, 2]
    assert logged_steps(tmp_path, "eval") == [2]
    assert sorted(p.name for p in log.folder.iterdir()) == [
        "eval-000002.parquet", "step-000001.parquet", "step-000002.parquet"
    ]  # fmt: skip
    assert [r.phase for r in read(tmp_path, 2, "eval")] == ["eval"]
    assert [r.step for r in read(tmp_path)] == [1, 2]


def test_errors_name_what_is_there(tmp_path):
    log = RolloutLog(tmp_path / "rollouts")
    with pytest.raises(UserError, match="no step was logged"):
        read(tmp_path, 1)
    log.write(4, [group_of([("7", 1.0)])])
    log.write(9, [group_of([("7", 1.0)])])
    with pytest.raises(UserError, match="steps 4 to 9"):
        read(tmp_path, 5)
    (tmp_path / "rollouts" / "step-000009.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match=r"step-000009\.parquet"):
        read(tmp_path, 9)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run\.folder"):
        RolloutLog(tmp_path / "file" / "rollouts")
