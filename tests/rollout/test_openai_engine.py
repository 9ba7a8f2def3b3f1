"""The engine ``openai``: what a server must be, found out before it is used."""

from __future__ import annotations

import asyncio

import pytest
from remote_helpers import bad_server
from rollout_helpers import TOKENIZER, prompt
from tiny import tiny_model

from assay.errors import AssayError, UserError
from assay.recipe.schema import Recipe, RolloutRecipe
from assay.rollout.engine import Request
from assay.rollout.engines import make_engine
from assay.rollout.remote.dialect import Ask, Malformed
from assay.rollout.remote.llama import LlamaDialect
from assay.rollout.remote.vllm import VllmDialect
from assay.rollout.sampling import Sampling

MODEL = tiny_model("llama")


@pytest.fixture(scope="module")
def server():
    with bad_server() as running:
        yield running


def engine_at(*urls: str, **rollout):
    values = {"engine": "openai", "servers": list(urls), "timeout_s": 20.0, **rollout}
    return make_engine(Recipe(rollout=RolloutRecipe(**values)), MODEL, TOKENIZER)


def ask(*urls: str, version: int | None = None, n: int = 1, **rollout):
    async def scenario():
        engine = engine_at(*urls, **rollout)
        try:
            if version is not None:
                await engine.publish(version)
            await engine.submit(Request(0, prompt("1+2="), n, Sampling(max_tokens=3)))
            return [r async for _, r in engine.finished()], engine.limits
        finally:
            await engine.close()

    return asyncio.run(scenario())


def test_token_ids_and_logprobs_come_and_the_context_is_the_servers(server):
    (found,), limits = ask(server.url("ids") + "/v1")
    assert found.token_ids == (7, 7, 7)
    assert found.sampler_logprobs == (-0.25,) * 3
    assert found.finish == "length"
    assert limits.context == 50


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("text", r"gives text without token ids \(token_ids\); training and evaluation need token ids and log-probs"),
        ("bare", r"gives token ids without a log-prob for each"),
        ("foreign", r"has another tokenizer than model.path: to it the tokens of 'The answer is 12 \+ 3'... are 'Some"),
        ("stranger", r"does not say what it is \(owned_by: 'someone'\): say rollout.options.kind=vllm"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_in_a_line(server, mode, said):
    with pytest.raises(UserError, match=said) as caught:
        ask(server.url(mode))
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_say_what_it_is_can_be_told(server):
    (found,), _ = ask(server.url("stranger"), options={"kind": "vllm"})
    assert found.token_ids == (7, 7, 7)


def test_a_server_that_is_not_there():
    with pytest.raises(AssayError, match=r"rollout.servers: no answer \(127.0.0.1:9: ConnectError"):
        ask("http://127.0.0.1:9")


def test_a_later_version_is_a_number_on_the_same_weights(server):
    (found,), _ = ask(server.url("ids"), version=4, allow_stale=True)
    assert found.segments[0].versions == (4,) * 3


def test_logprobs_of_another_temperature_are_not_trained_on(server):
    with pytest.raises(UserError, match=r"are those at temperature 1: use rollout.temperature=1, or"):
        ask(server.url("ids"), version=1, allow_stale=True, temperature=0.7)
    processed = {"options": {"logprobs": "processed"}, "temperature": 0.7}
    (found,), _ = ask(server.url("ids"), version=1, allow_stale=True, **processed)
    assert len(found) == 3


def test_several_servers_share_the_work(server):
    found, limits = ask(server.url("ids", 1), server.url("ids", 2), max_running=4, n=3)
    assert len(found) == 3
    assert limits.max_running == 4


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (
            {"options": {"modle": "m"}},
            r"rollout.options.modle: is none of kind, model, key_env, logprobs \(did you mean",
        ),
        ({"options": {"kind": "tgi"}}, r"rollout.options.kind: Input should be 'auto', 'vllm' or 'llama'"),
        ({"options": {"key_env": "ASSAY_TEST_NO_KEY"}}, "the environment variable ASSAY_TEST_NO_KEY is not set"),
        ({"options": {"key_env": "sk-123"}}, "must be the name of an environment variable"),
    ],
)
def test_options(server, rollout, message):
    with pytest.raises(UserError, match=message):
        engine_at(server.url("ids"), **rollout)


def test_addresses():
    with pytest.raises(UserError, match=r"rollout.servers, address 1: must begin with http"):
        engine_at("127.0.0.1:8000")


def test_a_model_that_is_not_served(server):
    with pytest.raises(UserError, match=r"rollout.options.model: 127.0.0.1:\d+ serves m, not other"):
        ask(server.url("ids"), options={"model": "other"})


def test_the_questions_ask_for_the_full_softmax_and_all_ends():
    path, body = VllmDialect("m").question(Ask((5, 6), 2, 9, Sampling(temperature=0.5), 3, frozenset({2, 8})))
    assert path == "/v1/completions"
    assert (body["prompt"], body["n"], body["max_tokens"], body["seed"]) == ([5, 6], 2, 9, 3)
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0.5, 1.0, 0, 0.0)
    assert (body["stop_token_ids"], body["ignore_eos"], body["return_token_ids"]) == ([2, 8], True, True)
    _, greedy = VllmDialect("m").question(Ask((5,), 1, 9, Sampling(greedy=True, top_k=4), 3, frozenset()))
    assert (greedy["temperature"], greedy["top_k"]) == (0.0, 0)
    _, llama = LlamaDialect().question(Ask((5,), 1, 9, Sampling(greedy=True, top_k=4), 3, frozenset()))
    assert (llama["samplers"], llama["top_k"]) == (["top_k"], 1)


def test_minus_infinity_is_no_logprob():
    choice = {"index": 0, "text": "a", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -9999.0]}}
    (piece,) = VllmDialect("m").read({"choices": [choice]})
    assert piece.logprobs[0] == -1.0
    assert piece.logprobs[1] != piece.logprobs[1]
    with pytest.raises(Malformed, match="without choices"):
        VllmDialect("m").read({})
