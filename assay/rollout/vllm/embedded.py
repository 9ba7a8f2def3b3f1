"""vLLM beside the trainer: its asynchronous engine here, its core and workers as processes below this one."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from assay.errors import AssayError, MissingExtra, UserError
from assay.rollout.vllm.arguments import as_flags, first_line, last_error
from assay.rollout.vllm.port import Ask, Piece, PortError, Refused


class EmbeddedPort:
    """A `Port` to an ``AsyncLLM`` that the first `ready` starts."""

    def __init__(self, arguments: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
        """``environment``: variables for vLLM and its processes, which write into ``log``."""
        self._arguments = dict(arguments)
        self._environment = dict(environment)
        self._log = log
        self._llm: Any = None

    async def ready(self) -> None:
        """Start the engine, which takes tens of seconds and holds the event loop."""
        if self._llm is None:
            with _surroundings(self._environment):
                self._llm = _started(self._arguments, self._log)

    async def alive(self) -> bool:
        """Is the core there?"""
        return self._llm is not None and not self._llm.errored

    async def pieces(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Sample an answer."""
        from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]

        renderer = self._llm.renderer
        prompt = TokensPrompt(prompt_token_ids=list(ask.token_ids), cache_salt=ask.salt)
        with _failing(ValueError, as_=Refused):
            params = SamplingParams(**ask.sampling, output_kind=RequestOutputKind.DELTA)
            (rendered,) = renderer.render_cmpl([prompt], renderer.default_cmpl_tok_params)
        with _failing(Exception):
            async for output in self._llm.generate(rendered, params, ask.name):
                yield _piece(output)

    async def abort(self, names: Sequence[str]) -> None:
        """End answers early."""
        with _failing(Exception):
            await self._llm.abort(names)

    async def pause(self, clear_cache: bool) -> None:
        """Hold all answers."""
        with _failing(Exception):
            await self._llm.pause_generation(mode="keep", clear_cache=clear_cache)

    async def resume(self) -> None:
        """Go on."""
        with _failing(Exception):
            await self._llm.resume_generation()

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """Meet the trainer."""
        from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
            WeightTransferInitRequest,
        )

        with _failing(Exception):
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

    async def start_update(self) -> None:
        """Weights are coming."""
        with _failing(Exception):
            await self._llm.start_weight_update()

    async def update(self, info: dict[str, Any]) -> None:
        """Some weights."""
        from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
            WeightTransferUpdateRequest,
        )

        with _failing(Exception):
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))

    async def finish_update(self, version: str) -> None:
        """All are there."""
        with _failing(Exception):
            await self._llm.finish_weight_update(version)

    async def sleep(self) -> None:
        """Level 2: neither weights nor cache are kept, as the next publish brings the weights."""
        with _failing(Exception):
            await self._llm.sleep(level=2)

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take memory again."""
        with _failing(Exception):
            await self._llm.wake_up([what])

    async def close(self) -> None:
        """Stop core and workers."""
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None


def _started(arguments: Mapping[str, Any], log: Path) -> Any:
    """The engine. Raises MissingExtra, UserError for arguments that vLLM refuses, AssayError when it does not start."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra("rollout.engine: vllm", "vllm", "vllm") from error

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(f"rollout.options: vLLM says: {first_line(message)}")

    parsed: Any = AsyncEngineArgs.add_cli_args(Parser()).parse_args(as_flags(arguments))
    try:
        config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UserError(f"rollout.options: vLLM says: {first_line(error)}") from error
    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except (RuntimeError, OSError, ValueError) as error:
        raise AssayError(f"vLLM did not start: {first_line(error)} {last_error(log)}") from error


@contextmanager
def _surroundings(environment: Mapping[str, str]) -> Iterator[None]:
    """The variables for the ``with`` block; those of vLLM alone stay, as it reads some of them later.

    What else it sets (a library to preload, numbers of threads) is taken back: verifiers' processes would inherit it.
    """
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before | {name: value for name, value in environment.items() if name.startswith("VLLM_")})


@contextmanager
def _failing(*kinds: type[Exception], as_: type[PortError] = PortError) -> Iterator[None]:
    """vLLM raises what it likes, its own kinds among them: all are the port's errors."""
    try:
        yield
    except PortError:
        raise
    except kinds as error:
        raise as_(f"{type(error).__name__}: {first_line(error)}") from error


def _piece(output: Any) -> Piece:
    """A piece of vLLM's ``RequestOutput`` with one completion."""
    (completion,) = output.outputs
    tokens = tuple(completion.token_ids)
    logprobs = tuple(entry[token].logprob for token, entry in zip(tokens, completion.logprobs or (), strict=True))
    spans = completion.weight_versions
    return Piece(
        tokens,
        logprobs,
        completion.finish_reason,
        None if spans is None else tuple((s.version, s.start, s.end) for s in spans),
        output.num_cached_tokens,
    )
