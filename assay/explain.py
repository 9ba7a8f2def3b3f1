"""`assay explain`: a resolved recipe as formulas with their numbers, and where each number came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from assay.recipe.derived import (
    choose_anchor,
    extra_groups,
    generation_dtype,
    generation_place,
    has_held_out,
    optimizer_steps,
    ratio_moves,
)
from assay.recipe.doubts import warnings
from assay.recipe.keys import flatten
from assay.recipe.load import Resolved, load_recipe
from assay.recipe.names import reads_of_estimator, reads_of_loss
from assay.recipe.presets import PRESETS, summary
from assay.recipe.schema import Recipe

COLOURS = {"preset": "magenta", "recipe": "green", "override": "yellow", "default": "bright_black"}
"""Colour of each kind of origin."""

LABEL_WIDTH = 12

Row = tuple[str, RenderableType]


def explain(resolved: Resolved | None, console: Console) -> None:
    """Print what a recipe amounts to: objective, anchor and clip, the cost of a step, where values came from.

    Without a recipe the presets are shown instead. Raises UserError for names that no estimator or loss has.
    """
    if resolved is None:
        explain_presets(console)
        return
    objective = list(_objective(resolved))  # an unknown name is refused before anything is printed
    console.print(_title(resolved))
    _print(console, "Objective", objective, spaced=True)
    _print(console, "Batch", _batch(resolved.recipe))
    _print(console, "Also set", _other_values(resolved))
    _print(console, "Doubts", (("is it meant?", Text(note, "yellow")) for note in warnings(resolved.recipe)))


def explain_presets(console: Console) -> None:
    """Print the presets side by side, then what each is, its source, and what else it sets."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for heading in ("", "advantage", "loss, clip range", "sum over", "KL"):
        table.add_column(heading)
    recipes = {name: load_recipe({"preset": name}, check=False).recipe for name in PRESETS}
    for name, recipe in recipes.items():
        table.add_row(Text(name, "bold cyan"), *preset_cells(recipe))
    console.print(Text("Presets: what the papers chose. A key that the recipe writes wins.", "bold"))
    console.print(Padding(table, (0, 0, 1, 2)))
    rows: list[Row] = []
    for name, recipe in recipes.items():
        also = preset_extras(recipe)
        lines = [Text(summary(name)), *([Text(f"also {', '.join(also)}", "bright_black")] if also else [])]
        rows.append((name, Group(*lines)))
    _print(console, "Sources", rows)


def preset_cells(recipe: Recipe) -> tuple[str, str, str, str]:
    """A preset in four short cells: advantage, loss with its clip range, aggregation, KL."""
    objective, kl = recipe.objective, recipe.objective.kl
    advantage = objective.estimator
    if "scale" in reads_of_estimator(advantage):
        advantage += {"group": " / std", "batch": " / batch std", "none": ", no std"}[objective.scale]
    loss = objective.loss
    if "clip_low" in reads_of_loss(loss):
        loss += f" {objective.clip_low:g}/{objective.clip_high:g}"
    term = f"{kl.coefficient:g} {kl.estimator} in {kl.where}" if kl.coefficient else "-"
    return advantage, loss, objective.aggregation, term


def preset_extras(recipe: Recipe) -> list[str]:
    """What a preset sets besides, in words."""
    extras = []
    if recipe.objective.ratio == "sequence":
        extras.append("one ratio per sequence")
    if recipe.update.minibatches > 1:
        extras.append(f"{recipe.update.minibatches} mini-batches per step")
    if recipe.objective.correction.kind == "truncate":
        extras.append(f"importance weights truncated at {recipe.objective.correction.high:g}")
    if recipe.rollout.dynamic_sampling:
        extras.append("dynamic sampling")
    if recipe.reward.overlong_buffer:
        extras.append(f"the last {recipe.reward.overlong_buffer:.0%} of max_tokens punished")
    return extras


_KEYS = {
    "anchor": ("anchor",),
    "ratio": ("ratio",),
    "truncated answers": ("mask_truncated",),
    "rejection": ("correction.reject_low", "correction.reject_high"),
    "entropy": ("entropy",),
}


def keys_of(label: str, recipe: Recipe) -> list[str]:
    """The keys beneath ``objective`` that the formula under ``label`` is made of, in schema order."""
    objective = recipe.objective
    found: Iterable[str] = _KEYS.get(label, ())
    if label == "advantage":
        found = {"estimator", *reads_of_estimator(objective.estimator)}
        if objective.scale == "none" and "scale" in found:
            found -= {"eps", "min_std"}
    elif label == "policy loss":
        found = {"loss", *reads_of_loss(objective.loss)} - {"ratio"}
        found -= {"dual_clip"} if objective.dual_clip is None else set()
    elif label == "correction":
        found = {"correction.kind", "correction.level", "correction.high"}
        found |= {"correction.low"} if objective.correction.kind == "mask" else set()
    elif label == "KL":
        found = {"kl.coefficient", "kl.estimator", "kl.where", "kl.controller"}
        found |= {"kl.target", "kl.horizon"} if objective.kl.controller == "adaptive" else set()
    elif label == "aggregation":
        found = {"aggregation"} | ({"constant_tokens"} if objective.aggregation == "constant" else set())
    wanted = {f"objective.{key}" for key in found}
    return [key for key in flatten(recipe) if key in wanted]


def _objective(resolved: Resolved) -> Iterator[Row]:
    from assay.objective.formula import describe

    recipe, update = resolved.recipe, resolved.recipe.update
    cap = recipe.rollout.max_tokens
    for label, formula in describe(recipe.objective, cap, update.epochs, update.minibatches):
        lines: list[RenderableType] = [Text(formula, "bold")]
        if label == "anchor":
            lines.append(Text(f"Why: {choose_anchor(recipe).reason}."))
        if label == "policy loss":
            lines += [Text(line) for line in _clip_notes(recipe)]
        lines.append(_provenance(keys_of(label, recipe), resolved))
        yield label, Group(*lines)


def _clip_notes(recipe: Recipe) -> Iterator[str]:
    """Is the clip alive?"""
    if "clip_low" not in reads_of_loss(recipe.objective.loss):
        return
    steps = optimizer_steps(recipe)
    if not ratio_moves(recipe):
        yield (
            "The clip is idle: with one optimizer step per batch the ratio is 1 "
            "(update.epochs or update.minibatches above 1 wakes it)."
        )
    elif steps > 1:
        yield f"The clip acts from the second of {steps} optimizer steps on; healthy: .1 to .3 of tokens."
    else:
        yield "The clip acts on the sampler's mismatch alone."


def _precision(recipe: Recipe) -> str:
    chosen = generation_dtype(recipe)
    return "bfloat16 where the machine has it, else float32" if chosen == "auto" else chosen


def _batch(recipe: Recipe) -> Iterator[Row]:
    """What one step and the whole run cost."""
    rollout, update, steps = recipe.rollout, recipe.update, optimizer_steps(recipe)
    prompts, each, cap = rollout.prompts_per_step, rollout.group_size, rollout.max_tokens
    yield (
        "sample",
        f"{prompts} prompts x {each} answers x {cap} tokens: at most {prompts * each * cap:,} a step, "
        f"in {_precision(recipe)}",
    )
    yield "generate", generation_place(recipe)
    if extra := extra_groups(recipe):
        more = extra * each * cap
        yield "replace", f"groups without signal, by at most {extra} further ones (at most {more:,} tokens)"
    if buffer := recipe.reward.overlong_buffer:
        worst = recipe.reward.overlong_penalty
        yield "punish", f"answers beyond {cap * (1 - buffer):g} tokens, linearly up to {worst:g} at {cap}"
    whole = recipe.objective.kl.coefficient or recipe.objective.entropy
    passes = [f"forward and backward over {'all answers' if whole else 'the answers that have an advantage'}"]
    if choose_anchor(recipe).kind == "recompute":
        passes.insert(0, "a forward for the anchor")
    if recipe.objective.kl.coefficient:
        passes.insert(0, "a forward of the reference model")
    yield "train", f"{', '.join(passes)}; {update.tokens_per_microbatch:,} tokens at a time"
    many = "one optimizer step" if steps == 1 else f"{steps} optimizer steps"
    split = f" (epochs {update.epochs} x minibatches {update.minibatches})" if steps > 1 else ""
    yield "update", f"{many} a batch{split}, learning rate {update.learning_rate:g}, {update.schedule}"
    held = "held-out problems are evaluated" if has_held_out(recipe) else "nothing is held out"
    yield "run", f"{recipe.run.steps:,} steps, {recipe.run.steps * prompts * each:,} answers; {held}"


def _other_values(resolved: Resolved) -> Iterator[Row]:
    """What was set outside the objective."""
    for key, value in flatten(resolved.recipe).items():
        origin = resolved.origins[key]
        if origin != "default" and key != "preset" and not key.startswith("objective."):
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_row(Text(_shown(value)), _origin(origin))
            yield key, row


def _provenance(keys: Sequence[str], resolved: Resolved) -> Text:
    """``clip_low 0.2 (preset dapo), ...``, each origin in its colour."""
    values = flatten(resolved.recipe)
    text = Text()
    for i, key in enumerate(keys):
        name = key.removeprefix("objective.")
        text.append(", " if i else "", "bright_black")
        text.append(f"{name} {_shown(values[key])} (", "bright_black")
        text.append(_origin(resolved.origins[key])).append(")", "bright_black")
    return text


def _origin(origin: str) -> Text:
    """The origin in its colour, without the folders of the recipe's path."""
    kind, _, path = origin.partition(" ")
    short = PurePath(path).name if kind == "recipe" and path else origin
    return Text(short, COLOURS[kind])


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _title(resolved: Resolved) -> Text:
    preset = resolved.recipe.preset
    text = Text().append(str(resolved.path) if resolved.path else "A recipe in memory", "bold")
    if preset is None:
        return text.append("\nno preset\n", "bright_black")
    return text.append(f"\n{summary(preset)}\n", COLOURS["preset"])


def _print(console: Console, heading: str, rows: Iterable[Row], *, spaced: bool = False) -> None:
    """A heading with labelled rows beneath it; nothing when there are none."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True, min_width=LABEL_WIDTH)
    table.add_column(ratio=1)
    for label, body in rows:
        if spaced and table.row_count:
            table.add_row("", "")
        table.add_row(label, body)
    if table.row_count:
        console.print(Text(heading, "bold"))
        console.print(Padding(table, (0, 0, 1, 2)))
