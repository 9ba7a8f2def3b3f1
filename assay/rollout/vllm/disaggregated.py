"""Prefill on one server, decoding on another: vLLM's connector moves the keys and values between them.

Each answer is asked of the prefill server for one token, which is thrown away; what that server says of where the keys
and values lie goes to the decode server with the whole question. Pauses and weights go to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from assay.rollout.vllm.port import Ask, Piece
from assay.rollout.vllm.served import ServedPort
from assay.rollout.vllm.transfer import Transfer

TO_BE_DECODED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks vLLM's connector to keep the prompt's keys and values for another server."""


class DisaggregatedPort:
    """A `Port` to a pair of servers."""

    def __init__(self, prefill: ServedPort, decode: ServedPort) -> None:
        self._prefill = prefill
        self._decode = decode

    async def ready(self) -> None:
        """Both are."""
        await asyncio.gather(self._prefill.ready(), self._decode.ready())

    async def alive(self) -> bool:
        """Both are."""
        return all(await asyncio.gather(self._prefill.alive(), self._decode.alive()))

    async def pieces(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Sample an answer."""
        kept = await self._prefill.prefill(ask, TO_BE_DECODED)
        async for piece in self._decode.pieces(ask, kept):
            yield piece

    async def abort(self, names: Sequence[str]) -> None:
        """End answers early, wherever they are."""
        await asyncio.gather(self._prefill.abort(names), self._decode.abort(names))

    async def pause(self, clear_cache: bool) -> None:
        """Hold all answers, those that come in first."""
        await self._prefill.pause(clear_cache)
        await self._decode.pause(clear_cache)

    async def resume(self) -> None:
        """Go on."""
        await asyncio.gather(self._decode.resume(), self._prefill.resume())

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(self._prefill.close(), self._decode.close())


class BothWays:
    """A `Transfer` to both, each by its own."""

    def __init__(self, *ways: Transfer) -> None:
        self._ways = ways

    async def prepare(self, version: int) -> None:
        """Each."""
        for way in self._ways:
            await way.prepare(version)

    async def send(self, version: int) -> None:
        """Each, at once."""
        await asyncio.gather(*(way.send(version) for way in self._ways))

    async def close(self) -> None:
        """Each."""
        for way in self._ways:
            await way.close()
