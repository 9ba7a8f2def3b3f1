"""The engine ``llama_server``: each new version of the policy is a GGUF file, and a llama.cpp server started on it.

`publish` writes the file while answers still run on the old weights, then interrupts them with their tokens kept, ends
the old server, starts one on the new file, and goes on. A fresh process for each version costs a fraction of a second
and cannot hold anything of the old one: no keys and values, no half of the weights.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from assay.records import Rollout
from assay.rollout.engine import Limits, Request, Stats
from assay.rollout.llama.files import WeightFiles
from assay.rollout.llama.process import Server, Settings, start_server
from assay.rollout.remote.client import Client
from assay.rollout.remote.exchange import Exchange
from assay.rollout.remote.llama import LlamaDialect
from assay.rollout.segments import decoder


class LlamaEngine:
    """An :class:`~assay.rollout.engine.Engine` of one llama.cpp server after the other."""

    def __init__(
        self,
        files: WeightFiles,
        tokenizer: Any,
        settings: Settings,
        *,
        limits: Limits,
        stop: frozenset[int],
        timeout_s: float,
        adopted: int | None = None,
    ) -> None:
        """``adopted``: it takes the place of an engine that was lost, and its first version is this one, as published.

        ``timeout_s``: silence for which a server is taken for dead.
        """
        self._files, self._settings, self._timeout = files, settings, timeout_s
        self._exchange = Exchange(LlamaDialect(), limits, stop, decoder(tokenizer), timeout_s)
        self._server: Server | None = None
        self._version, self._adopted = 0, adopted
        self._asleep = self._closed = False
        files.enter()

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return "a llama.cpp server"

    @property
    def limits(self) -> Limits:
        """Context of a slot, and the number of slots."""
        return self._exchange.limits

    @property
    def stats(self) -> Stats:
        """Counts since the engine was built."""
        return self._exchange.stats

    @property
    def pid(self) -> int | None:
        """The server's process id, while there is one."""
        return None if self._server is None else self._server.pid

    async def submit(self, request: Request) -> None:
        """Queue a request; before the first publish, a server on the present weights is started.

        Raises UserError when its prompt leaves no room, AssayError when the server has died.
        """
        if self._asleep:
            raise RuntimeError("the engine sleeps: publish the weights first")
        if self._server is None:
            await self.publish(self._version)
        await self._exchange.submit(request)

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as rollouts finish; AssayError when the server has died or hangs."""
        return self._exchange.finished()

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept."""
        await self._exchange.cancel(request_id)

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What the unfinished rollouts hold so far."""
        return self._exchange.partials()

    async def publish(self, version: int) -> None:
        """Write the policy's present weights, start a server on them, and go on with what was interrupted.

        Raises AssayError when the file cannot be written or the server does not come up.
        """
        adopted = self._files.last(version) if self._adopted == version else None
        path = adopted or await self._files.fresh(version)
        self._adopted = None
        await self._exchange.pause()
        await self._end_server()
        self._server = await start_server(self._settings, path, self._timeout)
        self._server.watch(self._exchange.fail)
        self._version, self._asleep = version, False
        self._exchange.resume(Client(self._server.url, timeout_s=self._timeout), version)

    async def sleep(self) -> None:
        """End the server until the next publish; RuntimeError with answers in flight."""
        if self._exchange.busy:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")
        self._asleep = True
        await self._exchange.pause()
        await self._end_server()

    async def close(self) -> None:
        """End the server; with the last engine that uses them the files go too."""
        if self._closed:
            return
        self._closed = True
        await self._exchange.close()
        await self._end_server()
        self._files.leave()

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
