"""What the system logs while a run goes on, said on the run's console."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from assay.track.console import Console


class _Speaker(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.message(record.getMessage(), "error" if record.levelno >= logging.ERROR else "warning")


@contextmanager
def logged_on(console: Console) -> Iterator[None]:
    """Say warnings and errors of the logger ``assay`` on ``console``, within the ``with`` block."""
    logger, speaker = logging.getLogger("assay"), _Speaker(console)
    logger.addHandler(speaker)
    try:
        yield
    finally:
        logger.removeHandler(speaker)
