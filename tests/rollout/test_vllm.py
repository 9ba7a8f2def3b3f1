"""The real vLLM as an engine: beside the trainer and as a server that runs already, held to the trainer's numbers."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from vllm_bench import LONG, TOKENIZER, Bench, ask, bench, gap, llama, needs_vllm, recipe, texts

from assay.errors import UserError
from assay.records import Rollout, Segment
from assay.rollout.vllm.remote import remote_engine
from assay.rollout.vllm.workshop import Workshop

pytestmark = needs_vllm
TOLERANCE = 1e-4


@pytest.fixture(params=["vllm_embedded", "vllm_served"])
def it(request) -> Bench:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_trainers(it, temperature):
    requests = [ask(LONG, 3, temperature=temperature), ask("7", 3, id=1, temperature=temperature)]
    answers = it.run(it.answers(*requests))
    assert sorted(answers) == [(i, k) for i in range(2) for k in range(3)]
    assert max(gap(it.model, requests[i], r, temperature) for (i, _), r in answers.items()) < TOLERANCE
    assert len(set(texts(answers).values())) == 6  # each has a seed of its own


def test_a_rollout_is_a_function_of_who_it_is(it):
    assert texts(it.run(it.answers(ask(n=3)))) == texts(it.run(it.answers(ask(n=2), ask(n=1, first_index=2))))


def test_an_answer_ends_at_every_stop_token_and_keeps_it(it):
    answers = it.run(it.answers(ask(n=16, max_tokens=150)))
    ended = [r for r in answers.values() if r.finish == "stop"]
    assert ended
    assert all(r.token_ids[-1] == 2 and 2 not in r.token_ids[:-1] for r in ended)
    assert all(len(r) == 150 for r in answers.values() if r.finish == "length")


def test_greedy_is_the_likeliest(it):
    request = ask(greedy=True)
    (rollout,) = it.run(it.answers(request)).values()
    again = ask(LONG, greedy=True, max_tokens=1, begun=rollout.segments[:0])
    assert gap(it.model, request, rollout) < TOLERANCE
    assert it.run(it.answers(again))[0, 0].token_ids == rollout.token_ids[:1]
    ids = torch.tensor([[*request.prompt.token_ids, *rollout.token_ids]])
    likeliest = it.model(ids).logits[0, len(request.prompt.token_ids) - 1 : -1].argmax(-1)
    assert likeliest.tolist() == list(rollout.token_ids)


def test_a_cut_distribution_gives_its_own_log_probs(it):
    request = ask(top_k=4, n=4)
    for rollout in it.run(it.answers(request)).values():
        (segment,) = rollout.segments
        ids = torch.tensor([[*request.prompt.token_ids, *rollout.token_ids]])
        logits = it.model(ids).logits[0, len(request.prompt.token_ids) - 1 : -1]
        kept = logits.masked_fill(logits < logits.topk(4).values[:, -1:], -math.inf).log_softmax(-1)
        expected = kept.gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
        assert segment.kept_logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)
        assert all(math.isnan(p) for p in segment.sampler_logprobs)


def test_a_publish_changes_what_is_sampled_from(it):
    old = llama()
    it.run(it.publish(seed=0))
    it.run(it.answers(ask(n=2)))  # its prompt is in the prefix cache now
    version = it.run(it.publish(seed=1))
    request = ask(n=2)
    for rollout in it.run(it.answers(request)).values():
        assert set(rollout.segments[0].versions) == {version}
        assert gap(it.model, request, rollout) < TOLERANCE
        assert gap(old, request, rollout) > 0.5


def test_weights_may_change_under_running_answers(it):
    request = ask(n=3, max_tokens=8000)

    def both(held: dict[int, Rollout]) -> bool:
        return any(len(set(r.segments[0].versions)) == 2 for r in held.values() if r.segments)

    async def scenario():
        await it.publish(seed=0)
        await it.engine.submit(request)
        following = asyncio.create_task(it.answers())
        await it.until(lambda held: any(map(len, held.values())) or following.done())
        new = await it.publish(seed=1)
        await it.until(lambda held: both(held) or following.done())
        await it.engine.cancel(request.id)
        return new, await following

    with it.endless():
        new, answers = it.run(scenario())
    seen = [(r.finish, len(r), {v for s in r.segments for v in s.versions}) for r in answers.values()]
    assert any(versions == {new - 1, new} for _, _, versions in seen), seen
    old = llama()
    for rollout in answers.values():
        (segment,) = rollout.segments
        assert list(segment.versions) == sorted(segment.versions)
        before = segment.versions.count(new - 1)
        assert gap(old, request, rollout, tokens=slice(before)) < TOLERANCE
        assert gap(it.model, request, rollout, tokens=slice(before, None)) < TOLERANCE  # keys and values are new too


def test_cancelled_answers_keep_their_tokens(it):
    request = ask(n=20, max_tokens=8000)

    async def scenario():
        await it.engine.submit(request)
        following = asyncio.create_task(it.answers())
        held = await it.until(lambda held: any(map(len, held.values())) or following.done())
        await it.engine.cancel(request.id)
        return held, await following

    with it.endless():
        held, answers = it.run(scenario())
    assert len(answers) == 20
    cancelled = [r for r in answers.values() if r.finish == "cancelled"]
    assert any(0 < len(r) < 8000 for r in cancelled)
    assert any(len(r) == 0 for r in cancelled)  # those that waited for a slot
    for rollout in cancelled:
        assert rollout.token_ids[: len(held[rollout.index])] == held[rollout.index].token_ids
        assert len(rollout) == 0 or gap(it.model, request, rollout) < TOLERANCE


def test_it_goes_on_behind_what_was_begun(it):
    request = ask(n=1, max_tokens=12)
    (whole,) = it.run(it.answers(request)).values()
    (s,) = whole.segments
    begun = (Segment("policy", s.token_ids[:5], s.sampler_logprobs[:5], (0,) * 5), Segment("forced", (9, 9)))
    (rollout,) = it.run(it.answers(ask(n=1, max_tokens=12, begun=begun))).values()
    assert [part.kind for part in rollout.segments] == ["policy", "forced", "policy"]
    assert rollout.segments[:2] == begun
    assert len(rollout) <= 12
    assert gap(it.model, request, rollout, tokens=slice(7, None)) < TOLERANCE


def test_more_than_a_step_can_read_is_read_in_turns(it):
    """Beyond its budget of a step (2,048 tokens) vLLM would read a prompt in parts, which its CPU worker dies of."""
    begun = [(Segment("forced", (9 + i, 30) * 1500),) for i in range(3)]
    requests = [ask(id=i, max_tokens=3020, begun=held) for i, held in enumerate(begun)]
    answers = it.run(it.answers(*requests))
    assert {r.finish for r in answers.values()} <= {"stop", "length"}
    assert max(gap(it.model, requests[i], r, tokens=slice(3000, None)) for (i, _), r in answers.items()) < TOLERANCE


def test_an_urgent_request_passes_those_that_wait(it):
    async def scenario():
        await it.engine.submit(ask(n=40, max_tokens=150))
        await it.engine.submit(ask("7", id=9, max_tokens=2, urgent=True))
        return [i async for i, _ in it.engine.finished()]

    order = it.run(scenario())
    assert len(order) == 41
    assert order.index(9) < 40 - it.engine.limits.max_running


def test_a_prompt_beyond_the_context_is_refused_before_it_is_sent(it):
    with pytest.raises(UserError, match="context"):
        it.run(it.engine.submit(ask("7" * 9000)))
    assert it.run(it.answers()) == {}


def test_weights_that_are_no_numbers_give_answers_that_are_errors(it):
    with torch.no_grad():
        it.model.model.norm.weight.fill_(math.nan)
    it.run(it.publish())
    answers = it.run(it.answers(ask(n=3)))
    assert {r.finish for r in answers.values()} == {"error"}
    assert all(r.segments == () for r in answers.values())
    it.run(it.publish(seed=0))
    assert gap(it.model, ask(), it.run(it.answers(ask()))[0, 0]) < TOLERANCE


def test_a_running_server_is_used_as_it_is(vllm_served):
    server = vllm_served
    url = server.engine._port.url
    with bench(lambda model: remote_engine(Workshop(recipe(), model, TOKENIZER), url)) as remote:
        remote.run(remote.publish(seed=3))
        request = ask(n=2)
        assert max(gap(remote.model, request, r) for r in remote.run(remote.answers(request)).values()) < TOLERANCE
        assert remote.engine.limits == server.engine.limits
    assert server.run(server.engine._port.alive())  # it is not ours to stop
    server.run(server.publish(seed=0))
