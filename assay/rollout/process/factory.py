"""From a recipe to native engines in processes of their own: how many, on how many threads, restarted when they die."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from assay.errors import AssayError
from assay.recipe.derived import generation_dtype
from assay.recipe.schema import Recipe
from assay.rollout.engine import Engine
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.process.board import Board
from assay.rollout.process.engine import ProcessEngine
from assay.rollout.process.messages import Settings


@dataclass(frozen=True)
class Threads:
    """CPU threads of torch's products."""

    trainer: int
    replica: int
    """Of each generation process."""


def split_threads(total: int, trainer: int | None, replica: int | None, replicas: int, *, together: bool) -> Threads:
    """Share out ``total`` threads; ``trainer`` and ``replica`` are what the recipe writes, absent where it is silent.

    ``together``: trainer and generation work at the same time; each side then gets half, or what the other one's
    number leaves over. Else they take turns, and each may have all.

    >>> split_threads(8, None, None, 1, together=True), split_threads(8, None, None, 2, together=False)
    (Threads(trainer=4, replica=4), Threads(trainer=8, replica=4))
    >>> split_threads(8, 2, None, 3, together=True), split_threads(8, None, 1, 3, together=True)
    (Threads(trainer=2, replica=2), Threads(trainer=5, replica=1))
    """
    if replica is None:
        free = total
        if together:
            free = total // 2 if trainer is None else total - trainer
        replica = max(1, free // replicas)
    if trainer is None:
        trainer = max(1, total - replica * replicas) if together else total
    return Threads(trainer, replica)


def threads_of(recipe: Recipe, total: int) -> Threads:
    """`split_threads` for a recipe; in deterministic mode both have ``run.threads`` (1): threads change the bits."""
    given, replicas = recipe.rollout.options.get("threads"), recipe.rollout.replicas
    if recipe.run.deterministic:
        count = recipe.run.threads or 1
        return Threads(count, given or count)
    return split_threads(total, recipe.run.threads, given, replicas, together=recipe.regime.max_staleness != 0)


def native_processes(recipe: Recipe, model: Any, tokenizer: Any) -> Engine:
    """``rollout.replicas`` native engines in processes of their own, behind one board of weights.

    Where trainer and generation work at the same time, the trainer's share of the threads is set here too. Raises
    AssayError where there is no memory for a second copy of the weights.
    """
    total = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = threads_of(recipe, total if recipe.run.threads else torch.get_num_threads())
    torch.set_num_threads(threads.trainer)
    replicas = recipe.rollout.replicas
    settings = Settings(
        dtype=generation_dtype(recipe),
        max_running=-(-recipe.rollout.max_running // replicas),
        threads=threads.replica,
        deterministic=recipe.run.deterministic,
        kv=recipe.regime.kv,
        graphs=recipe.rollout.graphs,
        compiled=recipe.run.kernels,
    )
    try:
        board = Board(model)
    except OSError as error:
        raise AssayError(f"no memory for a copy of the weights beside the trainer's: {error.strerror}") from error

    def start(number: int) -> ProcessEngine:
        name = "the generation process" if replicas == 1 else f"generation process {number}"
        return ProcessEngine(board, model, tokenizer, settings, timeout_s=recipe.rollout.timeout_s, name=name)

    if recipe.run.deterministic:  # one: an answer that went on elsewhere would not have the same bits
        return start(1)

    async def restart(number: int) -> Engine:
        engine = start(number)
        try:
            await engine.ready()
        except BaseException:
            await engine.close()
            raise
        return engine

    members = [Replica(f"generation process {n}", start(n), partial(restart, n)) for n in range(1, replicas + 1)]
    return Fleet(members, retries=recipe.rollout.max_retries)
