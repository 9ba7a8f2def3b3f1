"""New weights delivered to a vLLM: paused or asleep before, awake and with an empty prefix cache after."""

from __future__ import annotations

from assay.rollout.vllm.port import Port, Sleeper
from assay.rollout.vllm.transfer import Transfer


class Delivery:
    """What a publish and a sleep come to, for one vLLM."""

    def __init__(
        self, port: Port, transfer: Transfer, *, sleeper: Sleeper | None = None, keep_cache: bool = False
    ) -> None:
        """``sleeper``: gives memory back between a step's answers and its publish; ``None``: it stays awake.

        ``keep_cache``: running answers keep keys and values of old weights.
        """
        self._port = port
        self._transfer = transfer
        self._sleeper = sleeper
        self._keep_cache = keep_cache
        self.asleep = False

    async def deliver(self, version: int) -> None:
        """Pause, weights, resume; a sleeping vLLM is woken on the way. Raises PortError when it does not take them."""
        await self._transfer.prepare(version)
        if self.asleep and self._sleeper is not None:
            await self._sleeper.wake("weights")
            await self._transfer.send(version)
            await self._sleeper.wake("kv_cache")
            self.asleep = False
        else:
            await self._port.pause(clear_cache=not self._keep_cache)
            await self._transfer.send(version)
        await self._port.resume()

    async def sleep(self) -> None:
        """Give the memory back, where that can be done; nothing is running."""
        if self._sleeper is not None and not self.asleep:
            await self._sleeper.sleep()
            self.asleep = True

    async def close(self) -> None:
        """Free what is held for it."""
        await self._transfer.close()
