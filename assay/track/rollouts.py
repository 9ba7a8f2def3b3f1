"""The rollout log: every completion of a run with its verdict and advantage, one parquet file a step."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import UserError
from assay.records import Group, GroupKind, Outcome, Prompt
from assay.track.files import write_aside
from assay.track.text import storable

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = re.compile(r"(?P<phase>[a-z]+)-(?P<step>\d{6,})\.parquet")


@dataclass(frozen=True)
class LoggedRollout:
    """One completion as the rollout log holds it: a row, its fields the columns in this order."""

    step: int
    phase: str
    """``train``, or whatever else the rollouts were sampled for."""
    admission: int
    prompt_id: str
    problem: str
    source: str
    prompt: str
    """What the model was shown."""
    question: str
    """The last message before the answer, without the chat template: what a reader wants to see."""
    gold: str | None
    """The right answer, of the column that ``reward.gold`` names; what is not text is written as JSON."""
    index: int
    completion: str
    token_ids: tuple[int, ...]
    tokens: int
    finish: str
    reward: float | None
    correct: float | None
    outcome: Outcome
    answer: str | None
    message: str
    parts: Mapping[str, float | None]
    """Each verifier's unweighted score; a JSON object in the file."""
    advantage: float | None
    """``None`` where none was computed."""
    oldest_version: int | None
    kind: GroupKind
    truncated: bool
    """Was it cut at ``rollout.max_tokens``?"""

    @property
    def right(self) -> bool:
        """Is the answer correct: the first part's score, or else the reward, at least 0.5?"""
        score = self.reward if self.correct is None else self.correct
        return score is not None and score >= 0.5


def _gold(columns: Mapping[str, Any], name: str) -> str | None:
    """The gold answer as text: column ``name``, or a dotted path into nested columns."""
    value: Any = columns.get(name)
    if value is None and "." in name:
        value = columns
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return None
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _question(prompt: Prompt) -> str:
    content = prompt.messages[-1].get("content") if prompt.messages else None
    if isinstance(content, list):  # parts of a multi-part message: their texts
        content = "".join(p.get("text", "") for p in content if isinstance(p, Mapping))
    return storable(content if isinstance(content, str) else prompt.text)


def rows_of(
    step: int,
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float]] | None = None,
    phase: str = "train",
    gold: str = "answer",
) -> list[LoggedRollout]:
    """Return one row per rollout, in the order of groups and rollouts.

    ``advantages`` has a list per group with a value per rollout. Raises ``ValueError`` when the lengths do
    not match.
    """
    lists = [[None] * len(g.rollouts) for g in groups] if advantages is None else advantages
    return [
        LoggedRollout(
            step=step,
            phase=phase,
            admission=group.admission,
            prompt_id=storable(group.prompt.id),
            problem=storable(group.prompt.problem),
            source=storable(group.prompt.source),
            prompt=storable(group.prompt.text),
            question=_question(group.prompt),
            gold=_gold(group.prompt.columns, gold),
            index=rollout.index,
            completion=storable(rollout.text),
            token_ids=tuple(rollout.token_ids),
            tokens=len(rollout),
            finish=rollout.finish,
            reward=verdict.reward,
            correct=verdict.correct,
            outcome=verdict.outcome,
            answer=None if verdict.answer is None else storable(verdict.answer),
            message=storable(verdict.message),
            parts={storable(k): _finite(v) for k, v in verdict.parts.items()},
            advantage=None if advantage is None else float(advantage),
            oldest_version=rollout.oldest_version,
            kind=group.kind,
            truncated=rollout.finish == "length",
        )
        for group, values in zip(groups, lists, strict=True)
        for rollout, verdict, advantage in zip(group.rollouts, group.verdicts, values, strict=True)
    ]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _schema() -> pa.Schema:
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        **dict.fromkeys(("step", "admission", "oldest_version"), pa.int64()),
        **dict.fromkeys(("index", "tokens"), pa.int32()),
        **dict.fromkeys(("reward", "correct", "advantage"), pa.float64()),
        "token_ids": pa.list_(pa.int32()),
        "truncated": pa.bool_(),
    }
    return pa.schema([(f.name, types.get(f.name, pa.string())) for f in fields(LoggedRollout)])


class RolloutLog:
    """Writes ``step-000012.parquet`` (or ``eval-000012.parquet``) into a run's ``rollouts/`` folder.

    A file is written aside and renamed, so that it is whole or not there; writing a step again replaces its
    file. The same rows give the same bytes. ``gold`` names the column with the right answer.

    Raises :class:`UserError` when the folder cannot be made.
    """

    def __init__(self, folder: Path, gold: str = "answer") -> None:
        self.folder = Path(folder)
        self.gold = gold
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be made ({error.strerror}); choose another run.folder") from None

    def write(
        self,
        step: int,
        groups: Sequence[Group],
        advantages: Sequence[Sequence[float]] | None = None,
        phase: str = "train",
    ) -> Path:
        """Write the groups, with a list of advantages per group, and return the file; see :func:`rows_of`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = rows_of(step, groups, advantages, phase, self.gold)
        columns = [{**asdict(row), "parts": json.dumps(row.parts, ensure_ascii=False)} for row in rows]
        table = pa.Table.from_pylist(columns, schema=_schema())
        path = self.folder / f"{'step' if phase == 'train' else phase}-{step:06d}.parquet"
        write_aside(path, lambda aside: pq.write_table(table, aside, compression="zstd"))
        return path

    def truncate_after(self, step: int) -> None:
        """Delete the files of later steps than ``step``, last first, and any left half-written."""
        for aside in self.folder.glob(".*.parquet.tmp"):
            aside.unlink()
        found = [(int(m["step"]), p) for p in self.folder.iterdir() if (m := _FILE.fullmatch(p.name))]
        for _, path in sorted((f for f in found if f[0] > step), reverse=True):
            path.unlink()


def logged_steps(run: Path, phase: str = "train") -> list[int]:
    """Return the steps whose rollouts the run folder holds, in order."""
    prefix = "step" if phase == "train" else phase
    folder = Path(run) / "rollouts"
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(m["step"]) for n in names if (m := _FILE.fullmatch(n)) and m["phase"] == prefix)


def read(run: Path, step: int | None = None, phase: str = "train") -> list[LoggedRollout]:
    """Read the rollouts of a run folder, of one step or of all, in the order in which they were written.

    Raises :class:`UserError` when the step was not logged (it names the steps that were) or a file is broken.
    """
    steps = logged_steps(run, phase)
    if step is not None and step not in steps:
        there = f"steps {steps[0]} to {steps[-1]} are there" if steps else "no step was logged"
        raise UserError(f"{run}: no rollouts of step {step}; {there}")
    prefix = "step" if phase == "train" else phase
    chosen = steps if step is None else [step]
    return [row for s in chosen for row in _read_file(Path(run) / "rollouts" / f"{prefix}-{s:06d}.parquet")]


def _read_file(path: Path) -> list[LoggedRollout]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=[f.name for f in fields(LoggedRollout)]).to_pylist()
        return [
            LoggedRollout(**{**r, "token_ids": tuple(r["token_ids"]), "parts": json.loads(r["parts"])}) for r in rows
        ]
    except (pa.ArrowInvalid, TypeError) as error:
        raise UserError(f"{path}: not a file of the rollout log ({error}); delete it") from None
