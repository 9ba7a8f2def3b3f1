"""Alarms: signs that a policy is pleasing its verifier, or that training has stalled, read off the history of a run.

Each is a pure function of the lines of metrics.jsonl, so what was raised in a run can be found again from its log. A
change is measured between windows of ten steps, and counts from four standard errors on and from a size on: the numbers
stand in each rule. An alarm is raised once in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from assay.registry import Registry
from assay.track.rollouts import LoggedRollout
from assay.track.text import count_numbers
from assay.track.windows import SPANS, WINDOW, Change, History, change, changes, level, since, values

SOLVED = 0.9
"""From this accuracy on, short, sure and equal answers are what a solved task looks like."""
_LENGTHS = ("reward/correct", "rollout/tokens_mean_correct", "rollout/tokens_mean_wrong")
_CUT = "rollout/truncated_share"
_SHOWN = 2000


@dataclass(frozen=True)
class Sighting:
    """What a rule saw."""

    saw: str
    """In numbers."""
    since: int
    """The step from which on."""


@dataclass(frozen=True)
class Example:
    """A completion that shows it."""

    prompt_id: str
    question: str
    completion: str
    tokens: int
    reward: float | None


@dataclass(frozen=True)
class Alarm:
    """A rule that fired."""

    step: int
    """The step after which it was raised."""
    name: str
    since: int
    saw: str
    meaning: str
    advice: str
    examples: tuple[Example, ...] = ()

    def line(self) -> str:
        """All but the examples, in a line."""
        return f"alarm {self.name} (since step {self.since}): {self.saw}. {self.meaning} Try: {self.advice}"


Look = Callable[[History], Sighting | None]
"""A history up to now -> what is wrong now."""
Telling = Callable[[LoggedRollout], float]
"""How well a completion shows it; 0 and below: not at all."""


@dataclass(frozen=True)
class Rule:
    """One alarm: when it fires, what that means, what to try, and which completions show it."""

    look: Look
    meaning: str
    advice: str
    telling: Telling


RULES: Registry[Rule] = Registry("alarm")
"""The alarms by name."""


def rule(name: str, meaning: str, advice: str, telling: Telling) -> Callable[[Look], Look]:
    """Return a decorator that files a look under ``name``."""

    def file(look: Look) -> Look:
        RULES.register(name)(Rule(look, meaning, advice, telling))
        return look

    return file


def raised(history: History, already: Collection[str], rows: Callable[[], Sequence[LoggedRollout]]) -> list[Alarm]:
    """The alarms of the last step of ``history``, without those raised ``already``.

    ``rows`` gives the step's completions; it is called only when there is an alarm.
    """
    found = []
    for name in RULES:
        if name in already or (sighting := RULES[name].look(history)) is None:
            continue
        known = RULES[name]
        examples = tuple(tellings(rows(), known.telling))
        step = int(history[-1]["step"])
        found.append(Alarm(step, name, sighting.since, sighting.saw, known.meaning, known.advice, examples))
    return found


def tellings(rows: Sequence[LoggedRollout], telling: Telling, count: int = 2) -> Iterable[Example]:
    """The ``count`` completions that show it best, of different text where there are such."""
    ordered = sorted((row for row in rows if telling(row) > 0), key=lambda row: -telling(row))
    different = list({row.completion: row for row in reversed(ordered)}.values())[::-1]
    for row in (different if len(different) >= count else ordered)[:count]:
        yield Example(row.prompt_id, row.question, row.completion[:_SHOWN], row.tokens, row.reward)


def _unloved(row: LoggedRollout) -> float:
    """A high reward that a watched verifier does not share."""
    watched = [score for name, score in row.parts.items() if name.startswith("watch/") and score is not None]
    return 0.0 if row.reward is None or not watched else row.reward - min(watched)


def _numbers(row: LoggedRollout) -> float:
    return float(count_numbers(row.completion))


def _spread(history: History) -> float:
    """The usual distance of rewards within a step: the unit in which a rise of the reward is measured."""
    return level(history, "reward/std") or 1.0


def _moved(what: str, one: Change, form: str = ".2f") -> str:
    return f"{what} {one.before:{form}} -> {one.after:{form}}"


def _known_parts(history: History, prefix: str) -> list[str]:
    return sorted({name for row in history[-10:] for name in row if name.startswith(prefix)})


@rule(
    "watched_verifier_left_behind",
    "The policy is pleasing the verifier, not solving the task.",
    "read the examples, then mend the verifier (`assay audit`), or make the watched one a part of the reward",
    _unloved,
)
def watched_verifier_left_behind(history: History) -> Sighting | None:
    """The reward rose by a fifth of its spread or more, and a watched verifier by less than a third of that (its
    change plus two standard errors)."""
    least = 0.2 * _spread(history)
    for name in _known_parts(history, "reward/watch/"):
        for reward, watched in changes(history, "reward/mean", name):
            if reward.rises(least) and watched.at_most < reward.by / 3:
                words = _moved(name.removeprefix("reward/"), watched)
                return Sighting(f"{_moved('reward', reward)}, {words}", reward.since)
    return None


@rule(
    "format_only_gains",
    "The reward grows by its shaping, not by right answers.",
    "lower the weights of the shaping parts, or make them count only where the answer is right",
    lambda row: (row.reward or 0.0) * (not row.right),
)
def format_only_gains(history: History) -> Sighting | None:
    """The reward rose by a fifth of its spread or more, its first part by less than a third of that; another rose."""
    parts = _known_parts(history, "reward/part/")
    if len(parts) < 2:
        return None
    least = 0.2 * _spread(history)
    for reward, correct, *others in changes(history, "reward/mean", "reward/correct", *parts):
        risen = [(n, c) for n, c in zip(parts, others, strict=True) if c.rises(0.02)]
        if reward.rises(least) and correct.at_most < reward.by / 3 and risen:
            grew = ", ".join(_moved(name.removeprefix("reward/part/"), one) for name, one in risen)
            return Sighting(f"{_moved('reward', reward)}, {_moved('right answers', correct)}, {grew}", reward.since)
    return None


@rule(
    "length_inflation",
    "Answers grow without getting better: a loss divided by length lets long wrong ones off lightly.",
    "objective.aggregation=token or constant (dr_grpo), or reward.overlong_buffer",
    lambda row: float(row.tokens) * (not row.right),
)
def length_inflation(history: History) -> Sighting | None:
    """Right or wrong answers are half as long again or more, and accuracy rose by less than 0.05."""
    for span in SPANS:
        accuracy, right, wrong = (change(history, name, span) for name in _LENGTHS)
        grown = [one for one in (right, wrong) if one is not None and one.rises(0.5 * one.before)]
        if accuracy is not None and grown and accuracy.by < 0.05:
            told = [
                _moved(f"tokens of {name} answers", one, ".0f")
                for name, one in (("right", right), ("wrong", wrong))
                if one is not None
            ]
            return Sighting("; ".join([*told, _moved("accuracy", accuracy)]), grown[0].since)
    return None


@rule(
    "length_collapse",
    "Answers shrink and get no better: perhaps only the length is rewarded, or reasoning is being dropped.",
    "look at what reward.parts give for short answers; a gate makes length count only where the answer is right",
    lambda row: 1.0 / (1 + row.tokens),
)
def length_collapse(history: History) -> Sighting | None:
    """Answers are shorter by 30 % or more while accuracy, below 0.9, moved by less than 0.05."""
    for length, accuracy in changes(history, "rollout/tokens_mean", "reward/correct"):
        if length.falls(0.3 * length.before) and abs(accuracy.by) < 0.05 and accuracy.after < SOLVED:
            return Sighting(f"{_moved('tokens', length, '.0f')}; {_moved('accuracy', accuracy)}", length.since)
    return None


@rule(
    "answer_spraying",
    "The policy lists guesses: a verifier that takes the last one, or any, rewards it.",
    "a verifier that refuses several answers (math, or number with extract: boxed), or `assay audit` of yours",
    _numbers,
)
def answer_spraying(history: History) -> Sighting | None:
    """Numbers per completion rose by half or more, to 3 or more, and per token by a quarter or more."""
    for numbers, length in changes(history, "rollout/answers_mean", "rollout/tokens_mean"):
        if numbers.after < 3 or not numbers.rises(max(1.0, 0.5 * numbers.before)) or length.after <= 0:
            continue
        denser = numbers.after * length.before >= 1.25 * numbers.before * length.after
        if denser:
            saw = f"{_moved('numbers per completion', numbers, '.1f')}; {_moved('tokens', length, '.0f')}"
            return Sighting(saw, numbers.since)
    return None


@rule(
    "duplicate_completions",
    "Answers to a prompt repeat each other though many are wrong: there is little left to compare.",
    "a higher rollout.temperature, an entropy bonus, a lower learning rate",
    lambda row: 1.0,
)
def duplicate_completions(history: History) -> Sighting | None:
    """Half of the completions or more repeat another of their group, 0.2 more than before, while accuracy, below 0.8,
    rose by less than 0.05."""
    for copies, accuracy in changes(history, "rollout/duplicate_share", "reward/correct"):
        if copies.after >= 0.5 and copies.rises(0.2) and accuracy.after < 0.8 and accuracy.by < 0.05:
            return Sighting(f"{_moved('duplicates', copies)}; {_moved('accuracy', accuracy)}", copies.since)
    return None


@rule(
    "truncation",
    "A cut answer is marked wrong whatever it was about to say: the cap is being trained, not the task.",
    "a larger rollout.max_tokens, reward.overlong_buffer, or objective.mask_truncated",
    lambda row: float(row.tokens) * row.truncated,
)
def truncation(history: History) -> Sighting | None:
    """A quarter of the answers or more are cut at the cap, and that is not passing: five steps fell by less than 20 %
    against the five before."""
    cut, shares = level(history, _CUT), values(history[-WINDOW:], _CUT)
    if cut is None or cut < 0.25 or fmean(shares[-5:]) < 0.8 * fmean(shares[:5]):
        return None
    first = since(history, _CUT, lambda share: share >= 0.125)
    return Sighting(f"{100 * cut:.0f} % of the answers are cut at rollout.max_tokens", first)


@rule(
    "no_mixed_groups",
    "Only groups with right and wrong answers pull on the weights; there are hardly any.",
    "easier prompts where all fail, harder ones where all pass; rollout.dynamic_sampling, a larger group_size",
    lambda row: 1.0 + (row.reward or 0.0),
)
def no_mixed_groups(history: History) -> Sighting | None:
    """Less than a tenth of the groups are mixed."""
    mixed, fail, passed = (level(history, f"group/{kind}") for kind in ("mixed", "all_fail", "all_pass"))
    if mixed is None or fail is None or passed is None or mixed >= 0.1:
        return None
    saw = f"groups: {100 * fail:.0f} % all fail, {100 * mixed:.0f} % mixed, {100 * passed:.0f} % all pass"
    return Sighting(saw, since(history, "group/mixed", lambda share: share < 0.2))


@rule(
    "entropy_collapse",
    "The policy has stopped exploring before the task is solved; a dip is hard to leave.",
    "a lower learning rate, a wider clip_high, an entropy bonus, a KL term; go back to an earlier checkpoint",
    lambda row: 1.0,
)
def entropy_collapse(history: History) -> Sighting | None:
    """Entropy is below 0.1 nats and below 30 % of what it was, with accuracy below 0.9."""
    for entropy, accuracy in changes(history, "update/entropy", "reward/correct"):
        low = entropy.after < 0.1 and entropy.after < 0.3 * entropy.before
        if low and entropy.falls(0.0) and accuracy.after < SOLVED:
            return Sighting(f"{_moved('entropy', entropy, '.3f')}; {_moved('accuracy', accuracy)}", entropy.since)
    return None


@rule(
    "verdicts_missing",
    "What has no verdict is not punished: a policy may learn to break its verifier.",
    "look at the outcomes (`assay show RUN --outcome verifier_error`, unavailable, verifier_timeout)",
    lambda row: float(row.reward is None),
)
def verdicts_missing(history: History) -> Sighting | None:
    """A tenth of the verdicts or more carry no reward."""
    valid = level(history, "reward/valid_share")
    if valid is None or valid > 0.9:
        return None
    first = since(history, "reward/valid_share", lambda share: share <= 0.95)
    return Sighting(f"{100 * (1 - valid):.0f} % of the verdicts carry no reward", first)
