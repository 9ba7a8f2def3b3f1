"""The report's words: sample completions with their verdicts, and the recipe that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.recipe.schema import Recipe
from assay.track.alarms import Alarm
from assay.track.rollouts import LoggedRollout, logged_steps, read
from assay.track.samples import good_and_bad
from assay.track.trackers import flatten
from assay.view.charts import safe
from assay.view.run_record import RunRecord

_FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model", ("model.path",)),
    ("trained on", ("data.train",)),
    ("held out", ("data.eval", "data.holdout")),
    ("reward", ("reward.parts",)),
    ("objective", ("preset", "objective.estimator", "objective.loss", "objective.aggregation")),
    (
        "sampling",
        ("rollout.prompts_per_step", "rollout.group_size", "rollout.max_tokens", "rollout.temperature"),
    ),
    ("update", ("update.learning_rate", "update.schedule", "update.epochs", "update.minibatches")),
    ("KL", ("objective.kl.coefficient",)),
    ("seed", ("run.seed",)),
)


def samples(run: RunRecord, count: int = 6) -> str:
    """One good and one bad completion at ``count`` steps spread from the first to the last."""
    drawn = [_turn(good_and_bad(read(run.folder, step))) for step in spread(logged_steps(run.folder), count)]
    shown = "".join(turn for turn in drawn if turn)
    if not shown:
        return '<div class="card"><p class="missing">No completions were recorded.</p></div>'
    return (
        '<p class="note">The best and the worst completion of one group of the step, '
        f"which rule and not taste chose. All of them: <code>assay show {safe(run.name)}</code></p>{shown}"
    )


def spread(steps: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the steps, evenly spaced, both ends included.

    >>> spread([1, 2, 3, 4, 5, 6, 7], 3), spread([4], 3)
    ([1, 4, 7], [4])
    """
    if len(steps) <= count:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)]


def alarms(run: RunRecord) -> str:
    """What was raised, each with what it means, what to try, and completions that show it."""
    if not run.alarms:
        return '<div class="card"><p class="note">None was raised.</p></div>'
    return "".join(_alarm(alarm) for alarm in run.alarms)


def _alarm(alarm: Alarm) -> str:
    """One alarm; numbers, names and completions are all escaped."""
    head = f"<h3>{safe(alarm.name.replace('_', ' '))}, since step {alarm.since}</h3>"
    words = f"<p class='warn'>{safe(alarm.saw)}</p><p>{safe(alarm.meaning)}</p><p>Try: {safe(alarm.advice)}</p>"
    shown = "".join(
        f'<div class="sample fail"><div class="verdict"><span>{example.tokens} tokens</span>'
        f"<span>{safe('no reward' if example.reward is None else f'reward {example.reward:.3g}')}</span></div>"
        f"<p>{safe(example.question.strip())}</p><pre>{safe(example.completion)}</pre></div>"
        for example in alarm.examples
    )
    pair = f'<p class="note">At step {alarm.step}:</p><div class="pair">{shown}</div>' if shown else ""
    return f'<div class="turn">{head}{words}{pair}</div>'


def _turn(rows: Sequence[LoggedRollout]) -> str:
    if not rows:
        return ""
    cards = "".join(_sample(row) for row in rows)
    head = f"<h3>Step {rows[0].step}</h3><p>{safe(rows[0].question.strip())}</p>"
    return f'<div class="turn">{head}<div class="pair">{cards}</div></div>'


def _sample(row: LoggedRollout) -> str:
    """A completion with its verdict; every word of it is a stranger's and is escaped."""
    mark, look = ("✓ right", "pass") if row.right else ("✗ wrong", "fail")
    facts = [f"reward {row.reward:.3g}" if row.reward is not None else row.outcome]
    if row.advantage is not None:
        facts.append(f"advantage {row.advantage:+.2f}")
    facts.append(f"{row.tokens} tokens" + (", cut at the cap" if row.truncated else ""))
    answer = "no answer found" if row.answer is None else f"answer {row.answer}"
    facts.append(answer if row.right or row.gold is None else f"{answer}, wanted {row.gold}")
    spans = "".join(f"<span>{safe(fact)}</span>" for fact in facts)
    text = safe(row.completion) or '<span class="soft">(empty)</span>'
    why = f' title="{safe(row.message)}"' if row.message else ""
    verdict = f'<div class="verdict"{why}><b>{mark}</b>{spans}</div>'
    return f'<div class="sample {look}">{verdict}<pre>{text}</pre></div>'


def recipe(run: RunRecord) -> str:
    """What ran: the keys that matter most, and the whole recipe with those not at their default set bold."""
    if not run.recipe:
        return '<div class="card"><p class="missing">No recipe.yaml in the run folder.</p></div>'
    ran, defaults = flatten(run.recipe), flatten(Recipe().model_dump())
    rows = ""
    for name, keys in _FACTS:
        known = [(key, ran[key]) for key in keys if ran.get(key) not in (None, "", [])]
        words = " · ".join(_fact(key, value) for key, value in known)
        rows += f"<tr><td>{safe(name)}</td><td>{safe(words)}</td></tr>" if words else ""
    whole = "".join(
        f"<tr{_set(ran[key], defaults.get(key))}><td>{safe(key)}</td><td>{safe(_words(ran[key]))}</td></tr>"
        for key in ran
    )
    return (
        f'<div class="card"><table class="facts">{rows}</table><details><summary>The whole recipe, '
        f'values other than the default in bold</summary><table class="facts">{whole}</table></details></div>'
    )


def _fact(key: str, value: Any) -> str:
    """A value in the short table: numbers and names with what they are, long values alone."""
    last = key.rpartition(".")[2].replace("_", " ")
    alone = key in ("model.path", "data.train", "data.eval", "reward.parts", "run.seed")
    return _words(value) if alone else f"{last} {_words(value)}"


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_words(v) for v in value) or "–"
    if isinstance(value, Mapping):
        named = value.get("name") or value.get("verifier")
        rest = f" x {value['weight']:g}" if isinstance(value.get("weight"), int | float) else ""
        return f"{named}{rest}" if named else ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    return "–" if value is None else str(value)


def _set(value: Any, default: Any) -> str:
    return "" if value == default else ' class="set"'
