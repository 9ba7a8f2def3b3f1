"""vLLM behind HTTP: its token-in, token-out route, and the routes of its development mode for weight updates."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from assay.errors import AssayError, MissingExtra, UserError
from assay.rollout.vllm.launch import ServerProcess
from assay.rollout.vllm.port import Ask, Piece, PortError, Refused

try:
    import httpx2
except ImportError as error:
    raise MissingExtra("rollout.engine: vllm_server", "httpx2", "vllm") from error

START_S = 1200.0
"""Longest time in which a server of our own must begin to serve."""
POLL_S = 0.2
GENERATE = "/inference/v1/generate"
NO_NUMBER = -9999.0
"""What vLLM's server writes for a log-prob that is NaN or -inf."""
CONNECT_S = 10.0


class ServedPort:
    """A `Port` to one server: a process of our own, or one that somebody else runs."""

    def __init__(self, url: str, process: ServerProcess | None, timeout_s: float) -> None:
        """``timeout_s``: longest silence of a call for which the server has to do something."""
        self.url = url.rstrip("/")
        self.process = process
        self._session = uuid.uuid4().hex[:8]
        self._ready = False
        unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            # a connection that was not had is asked for once more: nothing was sent over it
            transport=httpx2.AsyncHTTPTransport(limits=unlimited, retries=1, trust_env=False),
            trust_env=False,
        )

    async def ready(self) -> None:
        """Wait for a server of our own to come up; one that somebody else runs must be there."""
        if self._ready:
            return
        deadline = time.monotonic() + START_S
        while not await self.alive():
            if self.process is None:
                raise UserError(
                    f"rollout.servers: nothing healthy answers at {self.url}: start it, or correct the address"
                )
            if not self.process.running():
                raise AssayError(f"the vLLM server did not start: {self.process.ended()}")
            if time.monotonic() > deadline:
                raise AssayError(f"the vLLM server was not healthy after {START_S:.0f} s (log: {self.process.log})")
            await asyncio.sleep(POLL_S)
        self._ready = True

    async def alive(self) -> bool:
        """Does it say that it is healthy, or only that it is busy?"""
        if self.process is not None and not self.process.running():
            return False
        try:
            return (await self._client.get("/health", timeout=CONNECT_S)).status_code == 200
        except httpx2.TransportError:
            return False

    async def pieces(self, ask: Ask, kept: dict[str, Any] | None = None) -> AsyncGenerator[Piece, None]:
        """Sample an answer; ``kept`` says where a prefill server keeps the prompt's keys and values."""
        with _failing(GENERATE):
            async with self._client.stream("POST", GENERATE, json=self._body(ask, kept, stream=True)) as response:
                if response.status_code != 200:
                    await response.aread()
                    _refuse(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        for piece in _pieces(json.loads(line[6:])):
                            yield piece

    async def prefill(self, ask: Ask, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """Have the keys and values of an ask kept for another server; what tells that one where they are."""
        first = replace(ask, sampling={**ask.sampling, "max_tokens": 1})
        return (await self._post(GENERATE, self._body(first, wanted, stream=False))).get("kv_transfer_params")

    async def abort(self, names: Sequence[str]) -> None:
        """End answers early."""
        ids = [f"generate-tokens-{self._id(name)}" for name in names]  # as the server calls them inside
        await self._post("/inference/v1/abort_requests", {"request_ids": ids})

    async def pause(self, clear_cache: bool) -> None:
        """Hold all answers."""
        await self._post(f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    async def resume(self) -> None:
        """Go on."""
        await self._post("/resume")

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """Meet the trainer."""
        await self._post("/init_weight_transfer_engine", {"init_info": info})

    async def start_update(self) -> None:
        """Weights are coming."""
        await self._post("/start_weight_update")

    async def update(self, info: dict[str, Any]) -> None:
        """Some weights; device handles are pickled, as vLLM's server wants them."""
        handles = info.pop("ipc_handles", None)
        if handles is not None:
            info["ipc_handles_pickled"] = b64encode(pickle.dumps(handles)).decode()
        await self._post("/update_weights", {"update_info": info})

    async def finish_update(self, version: str) -> None:
        """All are there."""
        await self._post("/finish_weight_update", {"weight_version": version})

    async def sleep(self) -> None:
        """Level 2: neither weights nor cache are kept, as the next publish brings the weights."""
        await self._post("/sleep?level=2")

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take memory again."""
        await self._post(f"/wake_up?tags={what}")

    async def close(self) -> None:
        """Close the connections, and end a server of our own."""
        await self._client.aclose()
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)

    def _id(self, name: str) -> str:
        return f"{self._session}-{name}"

    def _body(self, ask: Ask, kept: dict[str, Any] | None, *, stream: bool) -> dict[str, Any]:
        body = {
            "request_id": self._id(ask.name),
            "token_ids": list(ask.token_ids),
            "sampling_params": ask.sampling,
            "stream": stream,
            "cache_salt": ask.salt,
        }
        return body if kept is None else {**body, "kv_transfer_params": kept}

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with _failing(path):
            response = await self._client.post(path, json=body)
            if response.status_code != 200:
                _refuse(response)
            return response.json() if response.content else {}


@contextmanager
def _failing(path: str) -> Any:
    """What goes wrong on the way is the port's error."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.StreamError, json.JSONDecodeError) as error:
        raise PortError(f"{path}: {type(error).__name__} {error}".strip()) from error


def _refuse(response: httpx2.Response) -> None:
    """Raise what a status other than 200 means: 4xx would come again, 5xx may not."""
    said = " ".join(response.text.split())[:300]
    kind = Refused if 400 <= response.status_code < 500 else PortError
    hint = ": is it in development mode (VLLM_SERVER_DEV_MODE=1)?" if response.status_code == 404 else ""
    raise kind(f"{response.request.url.path} answered {response.status_code} {said}{hint}")


def _pieces(event: dict[str, Any]) -> list[Piece]:
    """The pieces in one event of the stream. Raises PortError for an event that reports a failure."""
    if "error" in event:
        raise PortError(f"the stream says {event['error']}")
    return [_piece(choice) for choice in event.get("choices", [])]


def _piece(choice: dict[str, Any]) -> Piece:
    tokens = tuple(choice.get("token_ids") or ())
    content = (choice.get("logprobs") or {}).get("content") or []
    logprobs = tuple(math.nan if entry["logprob"] <= NO_NUMBER else entry["logprob"] for entry in content)
    spans = choice.get("weight_versions")
    return Piece(
        tokens,
        logprobs,
        choice.get("finish_reason"),
        None if spans is None else tuple((s["version"], s["start"], s["end"]) for s in spans),
    )
