"""`assay serve-reward` as a process: batches give what single texts give, counters are right, it ends when told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from judge_helpers import ask
from reward_helpers import wait_until
from tiny import save_tiny, tiny_config, tiny_tokenizer

from assay.errors import UserError
from assay.reward.serve.batcher import Batcher
from assay.reward.serve.classifier import Item, TooLong, load_classifier
from assay.reward.verifier import Case, verifiers

TEXTS = ["4", "The answer is 4.", "", "four" * 20, "I do not know", "2+2=4"]


def save_classifier(folder: Path, family: str, labels: int = 1, chat: bool = True) -> Path:
    torch.manual_seed(1)
    if family == "bert":
        config = transformers.BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=128,
            num_labels=labels,
        )
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    else:
        transformers.LlamaForSequenceClassification(tiny_config(num_labels=labels)).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if not chat:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier") / "llama", "llama")


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "assay.cli", "serve-reward", str(model), "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said or process.communicate()[1]
        yield found[0], process
    finally:
        process.kill()
        process.communicate()


def get(url: str) -> str:
    with urllib.request.urlopen(url) as reply:
        return reply.read().decode()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def counters(url: str) -> dict[str, float]:
    lines = [line.split() for line in get(f"{url}/metrics").splitlines() if not line.startswith("#")]
    return {name.removeprefix("assay_reward_"): float(value) for name, value in lines}


def test_served_scores_are_the_models_own_whatever_the_batch(model: Path) -> None:
    classifier = load_classifier(str(model), "cpu", None)
    expected = [classifier.score([classifier.encode(Item("2+2?", text))])[0] for text in TEXTS]
    with serving(model, "--max-batch", "4", "--max-wait-ms", "20") as (url, process):
        health = json.loads(get(f"{url}/health"))
        assert health == {"status": "ok", "model": str(model), "device": "cpu"}
        together = post(f"{url}/score", {"items": [{"prompt": "2+2?", "completion": text} for text in TEXTS]})
        assert together["scores"] == pytest.approx(expected, abs=1e-5)
        assert len(set(together["scores"])) == len(TEXTS)
        counted = counters(url)
        assert (counted["requests_total"], counted["items_total"], counted["batches_total"]) == (1, 6, 2)
        assert counted["busy_seconds_total"] > 0
        verifier = verifiers["reward_model"]({"urls": [url], "concurrency": 16})
        asked = {"role": "user", "content": "2+2?"}
        found = ask(verifier, *(Case(completion=text, messages=(asked,)) for text in TEXTS))
        assert [judgement.score for judgement in found] == pytest.approx(expected, abs=1e-5)
        counted = counters(url)
        assert (counted["requests_total"], counted["items_total"], counted["waiting"]) == (7, 12, 0)
        squashed = verifiers["reward_model"]({"urls": [url], "activation": "sigmoid"})
        (judgement,) = ask(squashed, Case(completion="4", prompt="2+2?"))
        assert judgement.score == pytest.approx(1 / (1 + 2.718281828459045 ** -expected[0]), abs=1e-5)
        (long,) = ask(verifier, Case(completion="7" * 400, prompt="2+2?"))
        assert (long.score, long.outcome) == (None, "unavailable")
        assert "more than the 256 that the model can read" in long.message
        assert counters(url)["refused_total"] == 1
        with pytest.raises(urllib.error.HTTPError, match="422"):
            post(f"{url}/score", {"items": [{"completion": "4", "gold": "4"}]})
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM), errors
        assert "Traceback" not in output + errors


def test_what_was_accepted_is_finished_before_it_ends(model: Path) -> None:
    with serving(model, "--max-wait-ms", "1000") as (url, process), ThreadPoolExecutor(1) as asker:
        reply = asker.submit(post, f"{url}/score", {"items": [{"prompt": "2+2?", "completion": "4"}]})
        assert wait_until(lambda: counters(url)["requests_total"] == 1)
        process.send_signal(signal.SIGTERM)
        assert len(reply.result(60)["scores"]) == 1
        process.communicate(timeout=60)


@pytest.mark.parametrize(("family", "labels", "chat"), [("llama", 1, False), ("bert", 3, True), ("bert", 1, False)])
def test_a_batch_gives_what_single_texts_give(tmp_path: Path, family: str, labels: int, chat: bool) -> None:
    folder = save_classifier(tmp_path / "m", family, labels, chat)
    classifier = load_classifier(str(folder), "cpu", 2 if labels > 1 else None)
    texts = [classifier.encode(Item("2+2?", text)) for text in TEXTS]
    alone = [classifier.score([text])[0] for text in texts]
    assert classifier.score(texts) == pytest.approx(alone, abs=1e-5)
    if labels > 1:
        assert all(0 < score < 1 for score in alone)
    with pytest.raises(TooLong):
        classifier.encode(Item("?", "1" * 300))


def test_what_cannot_be_served_is_said(tmp_path: Path, model: Path) -> None:
    causal = save_tiny(tmp_path / "causal")
    with pytest.raises(UserError, match="not a sequence classifier"):
        load_classifier(str(causal), "cpu", None)
    with pytest.raises(UserError, match="no such folder"):
        load_classifier(str(tmp_path / "nothing"), "cpu", None)
    with pytest.raises(UserError, match="say which one"):
        load_classifier(str(save_classifier(tmp_path / "three", "bert", 3)), "cpu", None)
    with pytest.raises(UserError, match="has one output"):
        load_classifier(str(model), "cpu", 1)
    with pytest.raises(UserError, match="cannot be served"):
        load_classifier(str(model), "gpuu", None)


async def scored(batcher: Batcher, *requests: list[list[int]]) -> list[list[float] | BaseException]:
    import asyncio

    batcher.start()
    try:
        return await asyncio.gather(*(batcher.ask(texts) for texts in requests), return_exceptions=True)
    finally:
        await batcher.close()


def test_a_batch_that_fails_takes_no_other_with_it() -> None:
    import asyncio

    sizes: list[int] = []

    def score(texts: Any) -> list[float]:
        sizes.append(len(texts))
        if any(text == [13] for text in texts):
            raise RuntimeError("out of memory")
        return [float(text[0]) for text in texts]

    found = asyncio.run(scored(Batcher(score, max_batch=2, max_wait_s=1.0), [[1], [2]], [[13], [13]], [[3], [4]]))
    assert found[0] == [1.0, 2.0]
    assert found[2] == [3.0, 4.0]
    assert isinstance(found[1], RuntimeError)
    assert sizes == [2, 2, 2]
