"""The work of the training benchmarks, said once for both sides: model, prompts in their order, reward, settings.

Both sides get the same prompts in the same order as the same token ids, sample them at temperature 1 from the full
softmax, judge with `last_integer.py`, and take one AdamW step (no weight decay, gradients clipped at norm 1) on the
mean loss over the tokens of the whole batch, with advantages divided by the group's standard deviation and without KL.
Products are in the precision that is faster on the machine, over float32 weights. Each side is a program that is asked
for one step after the other (`workers.py`): `grpo_assay.py` runs Assay's own loop with its default settings,
`grpo_trl.py` runs TRL's trainer with the settings that were found best for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import peers
from workers import Worker

from assay.data.demo_model import resolve_model_path
from assay.data.prompts import PromptSet, load_prompts
from assay.data.sampler import PromptSampler
from assay.hardware import fast_precision
from assay.policy.model import load_tokenizer
from assay.recipe.schema import Recipe

FOLDER = Path(__file__).resolve().parent
SIDES = ("assay", "trl")
TASK = (
    'reasoning_gym:chain_sum{"size": 3000, "seed": 1, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'
)


WARM = 3
"""Steps of each side that are not counted: the first makes the optimizer's state, and the heap grows for some more."""
MICROBATCH = 16
"""Rows that TRL forwards at once, at most: see grpo_trl.py."""


@dataclass(frozen=True)
class Work:
    """What both sides are to do."""

    model: str
    precision: str
    """Of the matrix products; the weights are float32."""
    prompts: int
    """Groups in a step."""
    samples: int
    """Rollouts of each prompt."""
    tokens: int
    """Longest answer."""
    learning_rate: float
    microbatch: int
    """Rows that TRL forwards at once; Assay goes by its token budget."""
    compiled: bool
    """Does TRL compile its model? Minutes at first, an eighth off each step after that."""
    held_out: int
    """Problems that are never trained on."""
    steps: int
    """The most steps that will be asked for."""
    seed: int

    def recipe(self, runs: Path, name: str = "benchmark") -> Recipe:
        """The work as Assay's user would write it down; what is not here has its default."""
        return Recipe.from_dict(
            {
                "model": {"path": self.model, "device": "cpu", "compute_dtype": self.precision},
                "data": {"train": [TASK], "holdout": self.held_out, "max_prompt_tokens": 256},
                "rollout": {"prompts_per_step": self.prompts, "group_size": self.samples, "max_tokens": self.tokens},
                "reward": {"parts": [{"verifier": f"{FOLDER / 'last_integer.py'}:last_integer"}]},
                "objective": {"estimator": "grpo", "aggregation": "token", "eps": 1e-4},  # TRL's eps
                "update": {"learning_rate": self.learning_rate, "tokens_per_microbatch": 1024},
                "eval": {"before": False, "after": False},
                "checkpoint": {"every": 0},
                "run": {"folder": str(runs), "name": name, "steps": self.steps + 1, "seed": self.seed},
            }
        )

    def prompt_sets(self) -> tuple[PromptSet, PromptSet | None]:
        """The prompts to train on, and those held out."""
        recipe = self.recipe(Path())
        tokenizer = load_tokenizer(self.model, recipe.model)
        training = load_prompts(recipe.data, tokenizer)
        return training, load_prompts(recipe.data, tokenizer, "eval") if self.held_out else None


def options(parser: argparse.ArgumentParser, prompts: int, samples: int, tokens: int) -> None:
    """The options that the training benchmarks share."""
    parser.add_argument("--prompts", type=int, default=prompts, help="groups in a step")
    parser.add_argument("--samples", type=int, default=samples, help="rollouts of each prompt")
    parser.add_argument("--tokens", type=int, default=tokens, help="longest answer")
    parser.add_argument("--microbatch", type=int, help="rows that TRL forwards at once; default: see grpo_trl.py")
    parser.add_argument("--no-compile", action="store_true", help="never have TRL compile its model")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--only", choices=SIDES, help="run one side alone: no ratio, nothing saved")


def work_of(
    chosen: argparse.Namespace, steps: int, learning_rate: float, held_out: int = 0, compiled: bool = True
) -> Work:
    """The work that the command line asks for; ``compiled`` where there is a compiler, unless it forbids it."""
    rows = chosen.prompts * chosen.samples
    return Work(
        model=resolve_model_path(chosen.model),
        precision=fast_precision("cpu") if chosen.dtype == "auto" else chosen.dtype,
        prompts=chosen.prompts,
        samples=chosen.samples,
        tokens=chosen.tokens,
        learning_rate=learning_rate,
        microbatch=chosen.microbatch or max(n for n in range(1, MICROBATCH + 1) if rows % n == 0),
        compiled=compiled and not chosen.no_compile and any(map(shutil.which, ("g++", "clang++"))),
        held_out=held_out,
        steps=steps,
        seed=0,
    )


def sides_of(chosen: argparse.Namespace) -> tuple[str, ...]:
    """The sides that the command line asks for."""
    return SIDES if chosen.only is None else (chosen.only,)


def write(work: Work, folder: Path) -> Path:
    """Write the work down for the programs of both sides: the prompts of all steps are spelled out in their order."""
    training, _ = work.prompt_sets()
    order, _ = PromptSampler(len(training), work.seed).take(0, (work.steps + 1) * work.prompts)
    chosen = [training.prompts[i] for i in order]
    rows = [{"prompt": p.text, "ids": list(p.token_ids), "answer": str(p.columns["answer"])} for p in chosen]
    file = folder / "work.json"
    file.write_text(json.dumps({**asdict(work), "rows": rows, "folder": str(folder)}), encoding="utf-8")
    return file


def start(side: str, file: Path, environment: Mapping[str, str] = harness.KEEP_MEMORY) -> Worker:
    """The program of a side, ready for its first step. ``environment``: further variables."""
    python = Path(sys.executable) if side == "assay" else peers.python_of("trl")
    command = [str(python), str(FOLDER / f"grpo_{side}.py"), str(file)]
    return Worker(side, command, file.with_name(f"{side}.log"), environment)


def take_turns(
    work: Work,
    chosen: argparse.Namespace,
    one_step: Callable[[Worker], float],
    unit: str,
    environment: Mapping[str, str] = harness.KEEP_MEMORY,
) -> dict[str, harness.Measured]:
    """Have the sides do a step each, in turn, and measure it: a figure a round and side, after `WARM` uncounted."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = write(work, Path(folder))
        workers = [stack.enter_context(start(side, file, environment)) for side in sides_of(chosen)]
        for worker in workers:
            for _ in range(WARM):
                worker.ask("step")
        turns = {worker.name: partial(lambda worker, _: one_step(worker), worker) for worker in workers}
        return harness.alternate(turns, chosen.rounds, unit)


def shown(work: Work, chosen: argparse.Namespace) -> dict[str, Any]:
    """The settings that a result is saved with."""
    left_out = ("model", "seed", "steps")
    return {"model": chosen.model, **{k: v for k, v in asdict(work).items() if k not in left_out}}


def conclude(
    name: str,
    quotient: str,
    sides: Mapping[str, harness.Measured],
    settings: Mapping[str, Any],
    chosen: argparse.Namespace,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    mark: str = "",
) -> None:
    """Print what was found and, if asked, save it. ``quotient``: the ratio's sides, as ``trl/assay``."""
    if chosen.only is not None:  # one side has no ratio
        harness.show(sides, details)
        return
    over, under = (sides[side].median for side in quotient.split("/"))
    harness.finish(name, over / under, sides, settings, chosen.save, details, mark)
