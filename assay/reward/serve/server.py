"""`assay serve-reward`: load, listen, say where, serve until told to stop, finish what was accepted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from assay.errors import MissingExtra, UserError
from assay.reward.serve.batcher import Batcher
from assay.reward.serve.classifier import load_classifier

_GRACE = 30
"""Seconds that accepted requests may take to finish once the server is told to stop."""


def serve_reward(
    path: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8100,
    max_batch: int = 32,
    max_wait_s: float = 0.005,
    device: str = "auto",
    label: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the reward model in ``path`` until SIGINT or SIGTERM; ``port`` 0 takes a free one, which ``say`` tells.

    Raises :class:`MissingExtra` without FastAPI or uvicorn, :class:`UserError` for a model that cannot be served and an
    address that cannot be listened on.
    """
    for package in ("fastapi", "uvicorn"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra("assay serve-reward", package, "serve") from None
    import uvicorn

    from assay.reward.serve.app import make_app

    listening = _listen(host, port)
    classifier = load_classifier(path, device, label)
    batcher = Batcher(classifier.score, max_batch, max_wait_s)
    config = uvicorn.Config(
        make_app(classifier, batcher), log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE
    )
    name = f"[{host}]" if ":" in host else host
    say(f"{path} on {classifier.device}: http://{name}:{listening.getsockname()[1]}")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; taken before the model is loaded, which may take minutes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
