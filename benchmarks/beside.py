"""Decoding beside an engine that lives in another environment: the two sides in turn, each on all cores."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoding
import harness
import peers
import torch
from workers import Worker

FOLDER = Path(__file__).resolve().parent
QUIET = 0.03
"""The most that a side may use of a core while it is not its turn."""
PAUSE = 0.25
"""Seconds in which a side must have been quiet before the other one begins: thread pools spin before they sleep."""
PATIENCE = 40
"""Pauses after which it begins all the same."""


def measure(
    benchmark: str,
    peer: str,
    settings: Mapping[str, Any],
    chosen: argparse.Namespace,
    told: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Measure Assay beside the peer and print the ratio.

    The peer's program, decode_PEER.py, reads the work, its settings and what else it is ``told`` from a file, and
    answers each request with its tokens per second; ``environment``: further variables of it. Both sides keep freed
    memory for the next round. A turn begins when the other side's threads have gone to sleep, and one that uses the
    processor out of its turn is told of: such rounds do not compare.
    """
    harness.keep_freed_memory()
    work = decoding.work_of(chosen)
    rows = [list(p.token_ids) for p in work.prompts]
    said = {"model": work.place, "prompts": rows, "samples": work.samples, "tokens": work.tokens}
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "work.json", Path(folder) / "log"
        file.write_text(json.dumps(said | dict(settings) | dict(told or {})), encoding="utf-8")
        program = [str(peers.python_of(peer)), str(FOLDER / f"decode_{peer}.py"), str(file)]
        with Worker(peer, program, log, harness.KEEP_MEMORY | dict(environment or {})) as other:
            native, turns = decoding.Native(work, torch.device("cpu")), Turns()

            def ask(_: int) -> float:
                found = other.ask("round", tokens=work.tokens)
                assert found["tokens"] == work.rows * work.tokens, found
                return found["rate"]

            ask(0), native.rate(0)  # warm up
            sides = harness.alternate(
                {
                    "assay": turns.watching(native.rate, other.processor_seconds),
                    peer: turns.watching(ask, time.process_time),
                },
                chosen.rounds,
                "tokens/s",
            )
            about = other.about
    kept = harness.settings(chosen, dtype=work.precision) | dict(settings) | about
    mark = f"of sides that used up to {turns.busiest:.0%} of a core out of turn" if turns.busiest > QUIET else ""
    ratio = sides["assay"].median / sides[peer].median
    harness.finish(benchmark, ratio, sides, kept, chosen.save, mark=mark)


class Turns:
    """Sees to it that who waits sleeps."""

    def __init__(self) -> None:
        self.busiest = 0.0
        """The largest share of a core that a waiting side used."""

    def watching(self, side: Callable[[int], float], waiting: Callable[[], float]) -> Callable[[int], float]:
        """``side``, with an eye on the processor seconds of the one that waits."""

        def run(number: int) -> float:
            for _ in range(PATIENCE):
                before = waiting()
                time.sleep(PAUSE)
                if waiting() - before < QUIET * PAUSE:
                    break
            before, start = waiting(), time.perf_counter()
            figure = side(number)
            self.busiest = max(self.busiest, (waiting() - before) / (time.perf_counter() - start))
            return figure

        return run
