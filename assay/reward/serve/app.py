"""The addresses of a served reward model: /score, /health, /metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from assay.reward.serve.batcher import Batcher, Tally
from assay.reward.serve.classifier import Classifier, Item, TooLong


class AskedMessage(BaseModel):
    """One message of a conversation."""

    role: str
    content: str


class AskedItem(BaseModel):
    """One completion of a request."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = ""
    completion: str
    messages: list[AskedMessage] = Field(default_factory=list)


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")
    items: list[AskedItem] = Field(min_length=1, max_length=4096)


class Scores(BaseModel):
    """The body of its reply."""

    scores: list[float]
    model: str


def make_app(classifier: Classifier, batcher: Batcher) -> FastAPI:
    """The application; the batcher starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.close()

    app = FastAPI(title="assay reward model", lifespan=lifespan)

    @app.post("/score")
    async def score(asked: Asked) -> Scores:
        tally = batcher.tally
        tally.requests += 1
        items = [Item(i.prompt, i.completion, tuple(m.model_dump() for m in i.messages)) for i in asked.items]
        try:
            # Off the event loop, which must go on taking requests.
            texts = await asyncio.to_thread(lambda: [classifier.encode(item) for item in items])
        except TooLong as error:
            tally.refused += 1
            raise HTTPException(422, str(error)) from None
        try:
            scores = await batcher.ask(texts)
        except RuntimeError as error:
            tally.failed += 1
            raise HTTPException(500, (str(error).splitlines() or ["the model failed"])[0]) from None
        if not all(map(math.isfinite, scores)):
            tally.failed += 1
            raise HTTPException(500, "the model gave a number that is not finite")
        return Scores(scores=scores, model=classifier.name)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": classifier.name, "device": str(classifier.device)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        return metrics_text(batcher.tally, batcher.waiting)

    return app


def metrics_text(tally: Tally, waiting: int) -> str:
    """The counters as Prometheus reads them.

    >>> print(metrics_text(Tally(requests=2), 1).splitlines()[2])
    assay_reward_requests_total 2
    """
    rows = (
        ("requests_total", "counter", "Requests to /score that could be read.", tally.requests),
        ("refused_total", "counter", "Requests with a text that is too long.", tally.refused),
        ("failed_total", "counter", "Requests that the model failed on.", tally.failed),
        ("items_total", "counter", "Completions scored.", tally.items),
        ("batches_total", "counter", "Batches scored.", tally.batches),
        ("busy_seconds_total", "counter", "Seconds in which a batch was scored.", tally.busy_s),
        ("waited_seconds_total", "counter", "Seconds that completions waited for their batch.", tally.waited_s),
        ("waiting", "gauge", "Completions waiting for a batch.", waiting),
    )
    lines = []
    for name, kind, meaning, value in rows:
        full = f"assay_reward_{name}"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {value:g}"]
    return "\n".join(lines) + "\n"
