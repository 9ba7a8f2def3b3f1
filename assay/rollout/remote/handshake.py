"""What a running server is: its kind, its context, whether it has the same tokens and can be used at all."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from assay.errors import AssayError, UserError
from assay.http import Passing, Refused, Unavailable
from assay.rollout.remote.client import Client
from assay.rollout.remote.dialect import Ask, Dialect, Malformed
from assay.rollout.remote.llama import LlamaDialect
from assay.rollout.remote.options import ServerOptions
from assay.rollout.remote.vllm import VllmDialect
from assay.rollout.sampling import Sampling

TEXT = "The answer is 12 + 34 = 46, isn't it?"
"""Whose tokens the server is shown."""
TRIES = 3
_OWNERS = {"vllm": "vllm", "llamacpp": "llama"}
_WAIT_S = 0.25


@dataclass(frozen=True)
class Greeting:
    """What was found out."""

    dialect: Dialect
    context: int | None
    """Most tokens of prompt and answer, where the server says so."""


async def greet(client: Client, options: ServerOptions, tokenizer: Any) -> Greeting:
    """Find out how the server is asked, and that it gives token ids and log-probs.

    Raises UserError for one that cannot be used or has another tokenizer, AssayError for one that does not answer.
    """
    models = await _patiently(client, "/v1/models")
    entries = models.get("data") if isinstance(models, dict) else None
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise UserError(f"rollout.servers: {client.name} lists no models at /v1/models: is it a completions server?")
    wanted = options.model
    entry = next((e for e in entries if wanted is None or wanted in (e.get("id"), *e.get("aliases", ()))), None)
    if entry is None:
        names = ", ".join(str(e.get("id")) for e in entries)
        raise UserError(f"rollout.options.model: {client.name} serves {names}, not {wanted}")
    kind = options.kind if options.kind != "auto" else _OWNERS.get(str(entry.get("owned_by")))
    if kind is None:
        raise UserError(
            f"rollout.servers: {client.name} does not say what it is (owned_by: {entry.get('owned_by')!r}): say "
            "rollout.options.kind=vllm (or llama) if it takes and returns token ids like that one; text alone is no use"
        )
    dialect = _dialect(kind, str(entry.get("id")), options)
    await _same_tokens(client, dialect, tokenizer)
    await _trial(client, dialect, tokenizer)
    return Greeting(dialect, _context(entry))


def _dialect(kind: str, model: str, options: ServerOptions) -> Dialect:
    if kind == "llama":
        return LlamaDialect(spelled=True)
    return VllmDialect(model, processed=options.logprobs == "processed")


def _context(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    told = entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return int(told) if isinstance(told, int) and told > 0 else None


async def _patiently(client: Client, path: str) -> Any:
    """GET with a few tries: a server may be starting."""
    failure: Unavailable | None = None
    for attempt in range(TRIES):
        try:
            return await client.get(path)
        except Refused as error:
            raise UserError(
                f"rollout.servers: {error}: check the address and the key (rollout.options.key_env)"
            ) from None
        except Passing as error:
            failure = error
            if attempt < TRIES - 1:
                await asyncio.sleep(_WAIT_S * 2**attempt)
    raise AssayError(f"rollout.servers: no answer ({failure})")


async def _same_tokens(client: Client, dialect: Dialect, tokenizer: Any) -> None:
    """Have the server spell our ids, where it can: those of another vocabulary would be nonsense.

    (The other way, from text to ids, tokenizers of one vocabulary differ in how they cut words, which is no matter.)
    """
    body: dict[str, Any] = {"tokens": _ids(tokenizer)}
    if isinstance(dialect, VllmDialect):
        body["model"] = dialect.model
    try:
        told = await client.post("/detokenize", body)
    except Unavailable:
        return
    spelled = told.get("content", told.get("prompt")) if isinstance(told, dict) else None
    ours = tokenizer.decode(body["tokens"])
    if isinstance(spelled, str) and spelled.strip() != ours.strip():
        raise UserError(
            f"rollout.servers: {client.name} has another tokenizer than model.path: to it the tokens of "
            f"{ours[:20]!r}... are {spelled[:20]!r}: serve the same model"
        )


async def _trial(client: Client, dialect: Dialect, tokenizer: Any) -> None:
    """Ask for one token."""
    sampling = Sampling(max_tokens=1)
    path, body = dialect.question(Ask(tuple(_ids(tokenizer)), 1, 1, sampling, 0, frozenset()))
    try:
        async with asyncio.timeout(client.timeout_s), aclosing(client.events(path, body)) as events:
            async for event in events:
                for piece in dialect.read(event):
                    if piece.token_ids and (not dialect.complete or all(map(math.isfinite, piece.logprobs))):
                        return
    except Refused as error:
        raise UserError(f"rollout.servers: {error}") from None
    except (Passing, TimeoutError) as error:
        raise AssayError(f"rollout.servers: a first token cannot be had from {client.name}: {error}") from None
    except Malformed as error:
        raise UserError(
            f"rollout.servers: {client.name} gives {error}; training and evaluation need token ids and log-probs: use "
            "vLLM, llama.cpp's llama-server, or another engine"
        ) from None
    raise UserError(f"rollout.servers: {client.name} gave no token with a log-prob: it cannot be used")


def _ids(tokenizer: Any) -> list[int]:
    return list(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
