"""Answers kept by content: the same question is asked once, also while the first asking is still under way."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any


def content_key(*content: Any) -> str:
    """A name of JSON values that depends on nothing else: not on the order of an object's keys.

    >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1}), content_key(1) == content_key("1")
    (True, False)
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class AnswerCache:
    """The ``size`` answers last used (0: none are kept). For one event loop; failures are never kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self.hits = 0
        """Questions that needed no asking of their own."""

    async def get(self, key: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer kept under ``key``, else what ``ask`` gives; raises what it raises.

        A caller that is cancelled does not stop the asking: others may wait for the same answer.
        """
        if key in self._kept:
            self.hits += 1
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._size == 0:
            return await ask()
        task = self._asking.get(key)
        if task is None:
            task = asyncio.ensure_future(ask())
            self._asking[key] = task
            task.add_done_callback(lambda done: self._settle(key, done))
        else:
            self.hits += 1
        return await asyncio.shield(task)

    def _settle(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._asking[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = task.result()
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)
