"""Answers that go on behind what was begun, jump the queue, are looked at in the making, and keep their keys."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_helpers import TOKENIZER, collect, prompt, requests, run
from tiny import EOS, tiny_model

from assay.records import Segment
from assay.rollout.engine import Request
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling

ROOM = 20


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama", sharpness=3.0)


@pytest.fixture(scope="module")
def whole(llama):
    wanted = requests(n=3, max_tokens=ROOM, temperature=1.2)
    return wanted, run(NativeEngine(llama, TOKENIZER, deterministic=True), wanted)


def cut(segment: Segment, n: int) -> Segment:
    return Segment("policy", segment.token_ids[:n], segment.sampler_logprobs[:n], segment.versions[:n])


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_an_answer_cut_anywhere_goes_on_as_if_it_had_not_been(llama, whole, data):
    wanted, answers = whole
    rest = []
    for request in wanted:
        for index in range(request.n):
            (segment,) = answers[request.id, index].segments
            held = data.draw(st.integers(0, len(segment.token_ids)))
            begun = (cut(segment, held),) if held else ()
            rest.append(replace(request, n=1, first_index=index, begun=begun))
    again = run(NativeEngine(llama, TOKENIZER, deterministic=True, max_running=data.draw(st.integers(1, 18))), rest)
    assert again.keys() == answers.keys()
    for name, rollout in again.items():
        assert rollout.token_ids == answers[name].token_ids
        assert rollout.finish == answers[name].finish
        assert rollout.text == answers[name].text
        assert rollout.sampler_logprobs == pytest.approx(answers[name].sampler_logprobs, abs=1e-5)
        assert len(rollout.segments) == 1


def test_forced_tokens_stand_between_the_policys_and_each_token_has_its_version(llama):
    async def scenario():
        engine = NativeEngine(llama, TOKENIZER)
        await engine.publish(3)
        first = Segment("policy", (10, 11), (-1.0, -2.0), (1, 2))
        forced = Segment("forced", (20, 21, 22))
        settings = Sampling(max_tokens=9)
        names = {0: (first,), 1: (first, forced), 2: (forced,), 3: (first, forced, first)}
        asked = [Request(i, prompt("12+3="), 1, settings, seed=5, begun=begun) for i, begun in names.items()]
        return {i: r for (i, _), r in (await collect(engine, asked)).items()}

    seen = asyncio.run(scenario())
    assert {i: [s.kind for s in r.segments] for i, r in seen.items()} == {
        0: ["policy"],
        1: ["policy", "forced", "policy"],
        2: ["forced", "policy"],
        3: ["policy", "forced", "policy"],
    }
    assert all(len(r) <= 9 for r in seen.values())
    assert all(len(r) == 9 or r.finish == "stop" for r in seen.values())
    versions = seen[3].segments[-1].versions
    assert versions[:3] == (1, 2, 3)
    assert set(versions[2:]) == {3}
    assert seen[0].segments[0].versions[:3] == (1, 2, 3)
    assert seen[1].segments[1] == Segment("forced", (20, 21, 22))


def test_log_probs_behind_forced_tokens_are_those_of_the_whole_text(llama):
    forced = Segment("forced", tuple(TOKENIZER("=7;").input_ids))
    request = Request(0, prompt("12+3"), 1, Sampling(max_tokens=12), seed=1, begun=(forced,))
    rollout = run(NativeEngine(llama, TOKENIZER), [request])[0, 0]
    ids = torch.tensor([[*request.prompt.token_ids, *rollout.token_ids]])
    start = len(request.prompt.token_ids) + 3
    with torch.no_grad():
        logprobs = llama(ids).logits[0, start - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, start:, None])[:, 0].tolist()
    assert rollout.segments[1].sampler_logprobs == pytest.approx(expected, abs=1e-4)


def test_what_was_whole_when_it_was_begun_is_finished_without_a_forward(llama):
    stopped = Segment("policy", (10, EOS), (-1.0, -1.0), (0, 0))
    full = Segment("policy", (10,) * 6, (-1.0,) * 6, (0,) * 6)
    over = Segment("forced", (EOS,) * 9)
    engine = NativeEngine(llama, TOKENIZER)
    asked = [
        Request(i, prompt("1"), 1, Sampling(max_tokens=6), begun=(s,)) for i, s in enumerate((stopped, full, over))
    ]
    seen = run(engine, asked)
    assert [seen[i, 0].finish for i in range(3)] == ["stop", "length", "length"]
    assert [seen[i, 0].segments for i in range(3)] == [(stopped,), (full,), (over,)]
    assert seen[0, 0].text == TOKENIZER.decode([10])
    assert engine.stats.prefilled == 0


def test_only_one_rollout_can_go_on_behind_a_beginning():
    with pytest.raises(ValueError, match="2 rollouts cannot go on"):
        Request(0, prompt("1"), 2, Sampling(), begun=(Segment("forced", (5,)),))


def test_cut_distributions_keep_their_log_probs_over_a_cut(llama):
    (request,) = requests(["12+3="], n=1, max_tokens=12, top_k=5)
    rollout = run(NativeEngine(llama, TOKENIZER), [request])[0, 0]
    (segment,) = rollout.segments
    assert segment.kept_logprobs is not None
    begun = replace(cut(segment, 4), kept_logprobs=segment.kept_logprobs[:4])
    again = run(NativeEngine(llama, TOKENIZER), [replace(request, begun=(begun,))])[0, 0]
    assert again.token_ids == rollout.token_ids
    assert again.segments[0].kept_logprobs == pytest.approx(segment.kept_logprobs, abs=1e-5)


def test_the_urgent_is_answered_while_all_slots_are_taken(llama):
    async def scenario():
        engine = NativeEngine(llama, TOKENIZER, max_running=2)
        for request in requests(["12+3=", "x-y"], n=3, max_tokens=40, greedy=True):
            await engine.submit(request)
        order = []
        async for i, _ in engine.finished():
            order.append(i)
            if len(order) == 1:
                await engine.submit(Request(98, prompt("7"), 1, Sampling(max_tokens=1), urgent=True))
                await engine.submit(Request(99, prompt("8"), 1, Sampling(max_tokens=1), urgent=True))
        return order

    order = asyncio.run(scenario())
    assert len(order) == 8
    assert order.index(98) < order.index(99) <= 3


def test_a_probe_does_not_wait_until_all_running_answers_are_prefilled_anew(llama):
    async def scenario():
        engine = NativeEngine(llama, TOKENIZER)
        for request in requests(["12+3=", "x-y"], n=3, max_tokens=40, greedy=True):
            await engine.submit(request)
        stream = engine.finished()
        await engine.submit(Request(97, prompt("6"), 1, Sampling(max_tokens=1)))
        seen, filled = {}, 0
        async for i, rollout in stream:
            seen[i, rollout.index] = rollout
            if i == 97:
                filled = engine.stats.prefilled
                await engine.publish(1)
                await engine.submit(Request(98, prompt("7"), 1, Sampling(max_tokens=3), urgent=True))
            if i == 98:
                filled = engine.stats.prefilled - filled
        return seen, filled

    seen, filled = asyncio.run(scenario())
    assert filled == 1
    assert seen[98, 0].segments[0].versions == (1, 1, 1)[: len(seen[98, 0])]
    undisturbed = run(NativeEngine(llama, TOKENIZER), requests(["12+3=", "x-y"], n=3, max_tokens=40, greedy=True))
    assert {k: r.token_ids for k, r in seen.items() if k[0] < 90} == {k: r.token_ids for k, r in undisturbed.items()}


def test_partial_answers_are_what_a_cancellation_would_give(llama):
    async def scenario():
        engine = NativeEngine(llama, TOKENIZER, max_running=3)
        wanted = requests(n=2, max_tokens=30)
        for request in wanted:
            await engine.submit(request)
        untouched = await engine.partials()
        seen, held = {}, None
        async with contextlib.aclosing(engine.finished()) as stream:
            async for i, rollout in stream:
                seen[i, rollout.index] = rollout
                if len(seen) == 2:
                    held = await engine.partials()
                    break
        for request in wanted:
            await engine.cancel(request.id)
        seen_later = {(i, r.index): r async for i, r in engine.finished()}
        return untouched, seen, held, seen_later

    untouched, seen, held, cancelled = asyncio.run(scenario())
    assert {(i, r.index, r.segments, r.finish) for i, r in untouched} == {
        (i, k, (), "cancelled") for i in range(6) for k in range(2)
    }
    names = {(i, r.index): r for i, r in held}
    assert names.keys() == cancelled.keys()
    assert not names.keys() & seen.keys()
    assert any(r.segments for r in names.values())
    for name, rollout in names.items():
        assert rollout.finish == "cancelled"
        assert cancelled[name].token_ids[: len(rollout)] == rollout.token_ids


def gap_of(kv, change):
    """(answers, stats) where the weights change by ``change`` under running answers."""
    model = tiny_model("llama", seed=3, sharpness=2.0)

    async def scenario():
        engine = NativeEngine(model, TOKENIZER, kv=kv)
        long = Sampling(max_tokens=40)
        for i, text in enumerate(("12+3=", "x-y")):
            await engine.submit(Request(i, prompt(text), 2, long, seed=2))
        seen = {}
        stream = engine.finished()
        await engine.submit(Request(9, prompt("1"), 1, Sampling(max_tokens=4), seed=2))
        async for i, rollout in stream:
            seen[i, rollout.index] = rollout
            if i == 9:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(change)
                await engine.publish(1)
        return seen, engine.stats

    return asyncio.run(scenario())


def test_kept_keys_are_cheaper_and_their_error_is_measured():
    exact, fresh = gap_of("recompute", 1.05)
    kept, stale = gap_of("keep", 1.05)
    running = sum(1 for s in exact.values() if {0, 1} <= {v for seg in s.segments for v in seg.versions})
    assert running > 1
    assert stale.prefilled == 3 + stale.kv_measured == 4
    assert fresh.prefilled == 3 + running
    assert stale.kv_gap > 1e-4
    assert (fresh.kv_measured, fresh.kv_gap) == (0, 0.0)
    _, same = gap_of("keep", 1.0)
    assert same.kv_measured == 1
    assert abs(same.kv_gap) < 1e-6
    assert kept.keys() == exact.keys()
    for rollout in kept.values():
        for segment in rollout.segments:
            assert list(segment.versions) == sorted(segment.versions)


def test_rows_of_several_requests_share_their_groups_prompt(llama):
    """Six requests of one group are prefilled once and decoded as one group's."""
    (request,) = requests(["a much longer prompt than the others, 0123456789"], n=6)
    apart = [replace(request, n=1, first_index=i) for i in range(6)]
    one, many = NativeEngine(llama, TOKENIZER), NativeEngine(llama, TOKENIZER)
    together, singly = run(one, [request]), run(many, apart)
    assert together.keys() == singly.keys()
    assert [r.token_ids for r in together.values()] == [singly[k].token_ids for k in together]
    assert one.stats == many.stats
