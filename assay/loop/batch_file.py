"""The batch file: the groups of a step as JSON, to look at and to try again with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assay.errors import UserError
from assay.loop.folder import write_json
from assay.records import Group, Prompt, Rollout, Segment, Verdict


def write_batch(path: Path, step: int, groups: Sequence[Group]) -> None:
    """Write the groups of ``step``; a number that is not finite becomes ``null``. Raises OSError."""
    write_json(path, {"step": step, "groups": [asdict(group) for group in groups]})


def read_batch(path: Path) -> tuple[int, tuple[Group, ...]]:
    """The step, and its groups as they were written; a log-prob of ``null`` is NaN.

    Raises UserError when the file is not one that `write_batch` wrote.
    """
    try:
        batch = json.loads(path.read_text(encoding="utf-8"))
        return batch["step"], tuple(_group(values) for values in batch["groups"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a batch of a run ({type(error).__name__}: {error})") from error


def _group(values: Mapping[str, Any]) -> Group:
    asked = values["prompt"]
    prompt = Prompt(**{**asked, "messages": tuple(asked["messages"]), "token_ids": tuple(asked["token_ids"])})
    rollouts = tuple(
        Rollout(**{**rollout, "segments": tuple(map(_segment, rollout["segments"]))}) for rollout in values["rollouts"]
    )
    return Group(prompt, rollouts, tuple(Verdict(**verdict) for verdict in values["verdicts"]), values["admission"])


def _segment(values: Mapping[str, Any]) -> Segment:
    kept = values["kept_logprobs"]
    return Segment(
        values["kind"],
        tuple(values["token_ids"]),
        _numbers(values["sampler_logprobs"]),
        tuple(values["versions"]),
        None if kept is None else _numbers(kept),
    )


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)
