"""The inside of a generation process: a native engine on the weights of the board, driven by messages.

Three things end it: its parent's kill signal, its parent's death (the connection ends, which a thread of its own waits
for), and an error, which it reports first.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.rollout.native import NativeEngine
from assay.rollout.process.board import mapped
from assay.rollout.process.channel import Line
from assay.rollout.process.messages import (
    Blueprint,
    Busy,
    Cancel,
    Done,
    Failed,
    Finished,
    Order,
    Ready,
    Round,
    Sampled,
    Setup,
    Submit,
)
from assay.rollout.sequence import Sequence


def main(connection: int, memory: int) -> None:
    """Serve the parent at the other end of the socket ``connection``; ``memory`` is the board's."""
    line = Line(connection)
    loop = asyncio.new_event_loop()
    commands: asyncio.Queue[Any] = asyncio.Queue()
    try:
        setup: Setup = line.receive()
        threading.Thread(target=_listen, args=(line, loop, commands), daemon=True).start()
        server = Server(line, setup, memory, commands)
        line.send(Ready(server.engine.path, server.engine.limits, server.engine.stats))
        loop.run_until_complete(server.serve())
    except EOFError:
        return
    except Exception as error:  # the parent is told of any
        line.send(Failed.of(error))
    os._exit(1)  # whatever the listening thread does


def _listen(line: Line, loop: asyncio.AbstractEventLoop, commands: asyncio.Queue[Any]) -> None:
    """Hand on what the parent says; without a parent there is nothing to live for."""
    while True:
        try:
            message = line.receive()
        except EOFError:
            os._exit(0)
        loop.call_soon_threadsafe(commands.put_nowait, message)


def rebuilt(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> Any:
    """The causal LM of a blueprint on these tensors. Raises AssayError when they are not all that it has."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = blueprint.kind(blueprint.config)
    model.generation_config = blueprint.generation_config
    parameters: dict[int, nn.Parameter] = {}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf in module._buffers:
            module._buffers[leaf] = tensor
        else:
            module._parameters[leaf] = parameters.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=False))
    missing = [name for name, x in (*model.named_parameters(), *model.named_buffers()) if x.is_meta]
    if missing:
        raise AssayError(f"{blueprint.kind.__name__} has the weight {missing[0]!r}, which its checkpoint has not")
    return model.eval()


class Server:
    """A native engine, and who tells the parent what it does."""

    def __init__(self, line: Line, setup: Setup, memory: int, commands: asyncio.Queue[Any]) -> None:
        """Build the engine: on a copy of the board's weights."""
        from transformers.dynamic_module_utils import init_hf_modules

        settings = setup.settings
        torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(settings.deterministic)
        init_hf_modules()  # a model's own code is imported from there
        blueprint: Blueprint = pickle.loads(setup.model)
        self._board = mapped(memory, setup.plan)
        self._own: Mapping[str, Tensor] = {}
        if setup.device != "cpu":
            made = {id(tensor): tensor.to(setup.device) for tensor in self._board.values()}
            self._own = {name: made[id(tensor)] for name, tensor in self._board.items()}
        self._line, self._commands = line, commands
        self._work = asyncio.Event()
        self._rounds = settings.deterministic
        self.engine = NativeEngine(
            rebuilt(blueprint, self._own or self._board),
            blueprint.tokenizer,
            dtype=getattr(torch, settings.dtype),
            max_running=settings.max_running,
            deterministic=settings.deterministic,
            snapshot=not self._own,
            kv=settings.kv,
            graphs=settings.graphs,
            compiled=settings.compiled,
            heard=self._tell,
            busy=partial(line.send, Busy()),
            version=setup.version,
        )

    async def serve(self) -> None:
        """Carry out commands and generate, until an error."""
        await asyncio.gather(self._generate(), self._obey())

    async def _generate(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            async for request_id, rollout in self.engine.finished():
                self._line.send(Finished(request_id, rollout, self.engine.stats))

    async def _obey(self) -> None:
        while True:
            match await self._commands.get():
                case Submit(request):
                    await self.engine.submit(request)
                    self._begin()
                case Cancel(request_id):
                    await self.engine.cancel(request_id)
                    self._begin()
                case Round():
                    self._work.set()
                case Order(number, version):
                    await self._order(version)
                    self._line.send(Done(number))

    def _begin(self) -> None:
        """There is something to do; in rounds the parent says when."""
        if not self._rounds:
            self._work.set()

    async def _order(self, version: int | None) -> None:
        if version is None:
            await self.engine.sleep()
            return
        for name, tensor in self._own.items():
            tensor.copy_(self._board[name])
        await self.engine.publish(version)

    def _tell(self, sequences: list[Sequence]) -> None:
        rows = [
            (s.request.id, s.index, s.tokens[-1], s.logprobs[-1], s.kept_logprobs[-1] if s.kept_logprobs else None)
            for s in sequences
        ]
        self._line.send(Sampled(sequences[0].versions[-1], rows, self.engine.stats))
