"""Requests over HTTP against a real server process that fails on purpose: nothing hangs, nothing is made up."""

from __future__ import annotations

import asyncio

import pytest
from remote_helpers import answers_of, ask, bad_server, exchange_with

from assay.errors import AssayError, UserError
from assay.records import Segment
from assay.rollout.remote.client import Client


@pytest.fixture(scope="module")
def server():
    with bad_server() as running:
        yield running


def test_an_answer_arrives_with_its_version_and_logprobs(server):
    (found,) = answers_of(server.url("good"), ask())
    assert found.token_ids == (5, 6, 7, 8, 9)
    assert found.segments[0].versions == (3,) * 5
    assert found.sampler_logprobs == (-0.5,) * 5
    assert (found.finish, found.text) == ("length", "[5, 6, 7, 8, 9]")


def test_answers_that_begin_alike_are_one_question_and_big_groups_several(server):
    found = answers_of(server.url("good", 7), ask(n=5), max_running=2)
    assert [r.index for r in found] == [0, 1, 2, 3, 4]
    assert server.told("counts")["good/7/completion"] == 3


def test_the_first_stop_token_ends_an_answer_wherever_the_server_goes_on(server):
    (found,) = answers_of(server.url("good"), ask(max_tokens=9), stop=(6, 8))
    assert (found.token_ids, found.finish, found.text) == ((5, 6), "stop", "[5]")


@pytest.mark.parametrize("mode", ["fails", "malformed", "cut", "reset"])
def test_what_may_pass_is_asked_again_behind_the_tokens_that_came(server, mode):
    (found,) = answers_of(server.url(mode, 2), ask())
    assert found.token_ids == (5, 6, 7, 8, 9)
    assert found.finish == "length"
    assert server.told("counts")[f"{mode}/2/completion"] == 3


def test_siblings_of_a_cut_stream_go_on_each_by_itself(server):
    found = answers_of(server.url("cut", 1), ask(n=3))
    assert [r.token_ids for r in found] == [(5, 6, 7, 8, 9)] * 3
    assert len({r.index for r in found}) == 3


@pytest.mark.parametrize("mode", ["ill", "html", "noids"])
def test_what_never_passes_ends_as_an_error_after_bounded_tries(server, mode):
    (found,) = answers_of(server.url(mode), ask())
    assert (found.finish, found.segments) == ("error", ())
    assert server.told("counts")[f"{mode}/1/completion"] == 4


@pytest.mark.parametrize("mode", ["nan", "above"])
def test_a_logprob_that_is_none_ends_the_answer_as_an_error_and_spares_the_sound_part(server, mode):
    (found,) = answers_of(server.url(mode), ask())
    assert found.finish == "error"
    assert found.token_ids == (5, 6)


def test_a_question_that_is_refused_is_not_repeated(server):
    (found,) = answers_of(server.url("refuses"), ask())
    assert found.finish == "error"
    assert server.told("counts")["refuses/1/completion"] == 1


def test_a_server_that_never_answers_is_dead(server):
    with pytest.raises(AssayError, match=r"no longer answers .*status 503"):
        answers_of(server.url("down"), ask())


def test_nobody_there_is_dead():
    with pytest.raises(AssayError, match="no longer answers"):
        answers_of("http://127.0.0.1:9", ask())


def test_a_wrong_key_is_the_users_to_mend_and_is_not_shown(server):
    with pytest.raises(UserError, match="status 401") as caught:
        answers_of(server.url("denied"), ask(), key="s3cret-key")
    assert "s3cret-key" not in str(caught.value)
    assert "***" in str(caught.value)


def test_a_server_that_stalls_is_dead_not_waited_for(server):
    with pytest.raises(AssayError, match=r"no token within 0.2 s \(rollout.timeout_s\): the server hangs"):
        answers_of(server.url("stalls", 2), ask(), timeout_s=0.2)


def test_a_call_that_hangs_while_others_run_is_asked_again(server):
    lost, runs = ask(0, first=9), ask(1, first=4)
    found = answers_of(server.url("lost"), lost, runs, timeout_s=3.0)
    assert [r.finish for r in found] == ["length", "length"]
    assert found[0].token_ids == (10, 11, 12, 13, 14)


def test_a_server_killed_in_the_midst_of_an_answer():
    with bad_server() as doomed, pytest.raises(AssayError, match="no longer answers"):
        answers_of(doomed.url("dies", 2), ask())


def test_cancelling_keeps_what_came_and_publishing_goes_on_from_it(server):
    async def scenario():
        exchange = exchange_with()
        exchange.resume(Client(server.url("stalls", 3), timeout_s=20), 1)
        for request in (ask(0), ask(1, n=2)):
            await exchange.submit(request)
        while min(len(r) for _, r in exchange.partials()) < 3:  # the server stalls behind three tokens
            await asyncio.sleep(0.005)
        await exchange.cancel(0)
        await exchange.pause()
        held = exchange.partials()
        exchange.resume(Client(server.url("good"), timeout_s=20), 2)
        found = {(i, r.index): r async for i, r in exchange.finished()}
        await exchange.close()
        return held, found

    held, found = asyncio.run(scenario())
    assert [(i, r.token_ids) for i, r in held if i == 1] == [(1, (5, 6, 7))] * 2
    assert (found[0, 0].finish, found[0, 0].token_ids) == ("cancelled", (5, 6, 7))
    for index in range(2):
        assert found[1, index].token_ids == (5, 6, 7, 8, 9)
        assert found[1, index].segments[0].versions == (1, 1, 1, 2, 2)


def test_an_urgent_request_passes_those_that_wait_and_takes_a_slot_that_is_not_there(server):
    async def scenario():
        exchange = exchange_with(max_running=1)
        exchange.resume(Client(server.url("stalls", 1), timeout_s=20), 1)
        await exchange.submit(ask(0))
        await exchange.submit(ask(1))
        await exchange.submit(ask(2, max_tokens=1, urgent=True))
        async for request_id, _ in exchange.finished():
            await exchange.close()
            return request_id

    assert asyncio.run(scenario()) == 2


def test_a_begun_answer_goes_on_and_a_whole_one_is_not_asked_for(server):
    begun = (Segment("policy", (5, 6), (-0.1, -0.2), (0, 1)), Segment("forced", (7,)))
    whole = (Segment("policy", (5, 2), (-0.1, -0.2), (0, 0)),)
    forced_end = (Segment("forced", (2,)),)
    found = answers_of(
        server.url("good"),
        ask(0, begun=begun),
        ask(1, begun=whole),
        ask(2, begun=begun, max_tokens=3),
        ask(3, begun=forced_end),
        stop=(2,),
    )
    assert [s.kind for s in found[0].segments] == ["policy", "forced", "policy"]
    assert found[0].token_ids == (5, 6, 7, 8, 9)
    assert found[0].segments[0].sampler_logprobs == (-0.1, -0.2)
    assert (found[1].finish, found[1].token_ids) == ("stop", (5, 2))
    assert (found[2].finish, found[2].token_ids) == ("length", (5, 6, 7))
    assert len(found[3]) == 5


def test_prompts_that_do_not_fit_are_refused_before_anything_is_sent(server):
    with pytest.raises(UserError, match="1 tokens and the context is 1"):
        answers_of(server.url("good"), ask(), context=1)
    (found,) = answers_of(server.url("good"), ask(), context=4)
    assert (found.token_ids, found.finish) == ((5, 6, 7), "length")
