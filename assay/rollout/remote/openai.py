"""The engine ``openai``: servers that run already, with the weights that they have.

Their weights are nobody's to change, so it serves evaluation, and training only where the recipe says
``rollout.allow_stale``: then a new version is a new number on the same weights.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from assay.errors import UserError
from assay.http import check_urls, need_packages, read_key
from assay.recipe.schema import Recipe
from assay.records import Rollout
from assay.rollout.engine import Engine, Limits, Request, Stats, sampling_of
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.native import stop_tokens
from assay.rollout.remote.client import Client
from assay.rollout.remote.exchange import Exchange
from assay.rollout.remote.handshake import greet
from assay.rollout.remote.llama import LlamaDialect
from assay.rollout.remote.options import ServerOptions, server_options
from assay.rollout.sampling import Sampling
from assay.rollout.segments import decoder
from assay.rollout.weights import causal_lm_of

SETTING = "rollout.engine = openai"


def make_openai(recipe: Recipe, model: Any, tokenizer: Any) -> Engine:
    """The engine ``openai`` of a recipe: one server, or a fleet of them. ``model`` is read for its config alone.

    Raises UserError for options, addresses and keys that cannot be used, MissingExtra without the HTTP client.
    """
    need_packages(SETTING, "openai", "httpx2")
    rollout = recipe.rollout
    options = server_options(rollout.options)
    urls = check_urls(rollout.servers, "rollout.servers")
    key = read_key(options.key_env, "rollout.options.key_env")
    causal_lm = causal_lm_of(model)
    context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
    stop = stop_tokens(causal_lm, tokenizer)

    def make(url: str) -> OpenAiEngine:
        client = Client(url.removesuffix("/v1"), timeout_s=rollout.timeout_s, key=key)
        limits = Limits(context, -(-rollout.max_running // len(urls)))
        return OpenAiEngine(client, options, tokenizer, limits=limits, stop=stop, trained_on=sampling_of(rollout))

    engines = [make(url) for url in urls]
    if len(engines) == 1:
        return engines[0]
    return Fleet([Replica(e.name, e) for e in engines], retries=rollout.max_retries)


class OpenAiEngine:
    """An :class:`~assay.rollout.engine.Engine` of one server with fixed weights."""

    def __init__(
        self,
        client: Client,
        options: ServerOptions,
        tokenizer: Any,
        *,
        limits: Limits,
        stop: frozenset[int],
        trained_on: Sampling,
    ) -> None:
        """``trained_on``: the sampling whose log-probs training would need. The server is greeted at the first use."""
        self._client, self._options, self._tokenizer, self._trained_on = client, options, tokenizer, trained_on
        self._exchange = Exchange(LlamaDialect(), limits, stop, decoder(tokenizer), client.timeout_s)
        self._greeted = False
        self._version = 0

    @property
    def name(self) -> str:
        """The server's host and port."""
        return self._client.name

    @property
    def version(self) -> int:
        """The version that tokens carry: of the loop's books, for the weights are always the same."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return f"the server at {self.name}, its weights as they are"

    @property
    def limits(self) -> Limits:
        """The shorter context of the model's and, once it was greeted, the server's; answers asked for at once."""
        return self._exchange.limits

    @property
    def stats(self) -> Stats:
        """Counts since the engine was built."""
        return self._exchange.stats

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when its prompt leaves no room, or for a server that cannot be used."""
        await self._greet()
        await self._exchange.submit(request)

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as rollouts finish; AssayError when the server no longer answers."""
        return self._exchange.finished()

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept."""
        await self._exchange.cancel(request_id)

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What the unfinished rollouts hold so far."""
        return self._exchange.partials()

    async def publish(self, version: int) -> None:
        """Give later tokens another version; the weights stay. UserError where log-probs are not those of training."""
        await self._greet()
        dialect = self._exchange.dialect
        if not dialect.complete:
            raise UserError(
                f"{SETTING}: a llama.cpp server leaves out log-probs of tokens that end within a character: evaluate "
                "with it, and train with rollout.engine=llama_server"
            )
        if dialect.reported(self._trained_on) != "full":
            raise UserError(
                f"{SETTING}: the log-probs of {self.name} are those at temperature 1: use rollout.temperature=1, or "
                "start it with --logprobs-mode processed_logprobs and say rollout.options.logprobs=processed"
            )
        self._version = version
        self._exchange.resume(self._client, version)

    async def sleep(self) -> None:
        """Nothing of it is here to be freed; RuntimeError with answers in flight."""
        if self._exchange.busy:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")

    async def close(self) -> None:
        """Hang up."""
        await self._exchange.close()
        await self._client.close()

    async def _greet(self) -> None:
        if self._greeted:
            return
        found = await greet(self._client, self._options, self._tokenizer)
        self._greeted = True
        old = self._exchange.limits
        contexts = [c for c in (old.context, found.context) if c is not None]
        self._exchange.dialect = found.dialect
        self._exchange.limits = replace(old, context=min(contexts, default=None))
        self._exchange.resume(self._client, self._version)
