"""What of a run is in flight at a checkpoint, as a file: groups begun, their answers so far, their verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from assay.data.prompts import PromptSet
from assay.errors import UserError
from assay.loop.making import Asking, Making
from assay.loop.schedule import Place
from assay.records import Prompt, Rollout, Segment, Verdict

FILE = "in-flight.json"

Stage = Literal["running", "ready", "unused"]
"""In the making; complete and waiting for its batch; complete and set aside, to be reported by the next step."""


@dataclass(frozen=True)
class Unfinished:
    """A group that is started and not trained on."""

    making: Making
    place: Place | None
    """In the schedule; a group set aside for want of signal has none."""
    stage: Stage
    fresh: bool = False
    """Completed since the last step: no step has reported it yet."""


@dataclass(frozen=True)
class InFlight:
    """What is started and not reported: the running in the order of admission, the others in that of completion."""

    groups: tuple[Unfinished, ...] = ()
    extra: int = 0
    """Replacements admitted for the batch in the making."""

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint's folder; nothing in flight is no file. Raises OSError."""
        if self.groups or self.extra:
            values = {"extra": self.extra, "groups": [_saved(u) for u in self.groups]}
            (folder / FILE).write_text(json.dumps(values), encoding="utf-8")


def read_in_flight(folder: Path, prompts: PromptSet) -> InFlight:
    """What `InFlight.write` wrote, its prompts found again in ``prompts``. Raises UserError where one is gone."""
    path = folder / FILE
    if not path.exists():
        return InFlight()
    values = json.loads(path.read_text(encoding="utf-8"))
    by_id = {p.id: p for p in prompts.prompts}
    gone = [saved["making"]["prompt"] for saved in values["groups"] if saved["making"]["prompt"] not in by_id]
    if gone:
        raise UserError(
            f"{path}: {len(gone)} prompts that were being answered are not in the data any more, such as {gone[0]}: "
            "resume with the data that the run began with"
        )
    groups = [
        Unfinished(
            _making(s["making"], by_id[s["making"]["prompt"]]),
            None if s["place"] is None else Place(**s["place"]),
            s["stage"],
            s["fresh"],
        )
        for s in values["groups"]
    ]
    return InFlight(tuple(groups), values["extra"])


def with_partials(making: Making, partials: Mapping[int, Rollout], asking: Asking) -> Making:
    """A copy of ``making`` whose unfinished rollouts hold what the engine has of them; ``partials`` are by index.

    One that is at its thinking budget has been stopped there and not yet been heard of: it goes on as if it had.
    """
    begun = dict(making.begun)
    for place in making.missing:
        partial = partials.get(making.indices[place])
        if partial is not None and partial.segments:
            begun[place] = asking.onward(replace(partial, finish="length")) or partial.segments
    return replace(
        making,
        begun=begun,
        rollouts=dict(making.rollouts),
        verdicts=dict(making.verdicts),
        indices=dict(making.indices),
        replaced=list(making.replaced),
        cancelled=list(making.cancelled),
    )


def _saved(unfinished: Unfinished) -> dict[str, Any]:
    m = unfinished.making
    return {
        "stage": unfinished.stage,
        "fresh": unfinished.fresh,
        "place": None if unfinished.place is None else asdict(unfinished.place),
        "making": {
            "admission": m.admission,
            "prompt": m.prompt.id,
            "size": m.size,
            "keep": m.keep,
            "first_index": m.first_index,
            "attempts": m.attempts,
            "indices": [*m.indices.items()],
            "rollouts": [(p, asdict(r)) for p, r in m.rollouts.items()],
            "verdicts": [(p, asdict(v)) for p, v in m.verdicts.items()],
            "begun": [(p, [asdict(s) for s in segments]) for p, segments in m.begun.items()],
            "replaced": [(asdict(r), asdict(v)) for r, v in m.replaced],
            "cancelled": [asdict(r) for r in m.cancelled],
        },
    }


def _making(values: dict[str, Any], prompt: Prompt) -> Making:
    lists = {"rollouts", "verdicts", "begun", "replaced", "cancelled", "indices", "prompt"}
    return Making(
        **{name: value for name, value in values.items() if name not in lists},
        prompt=prompt,
        indices=dict(values["indices"]),
        rollouts={place: _rollout(r) for place, r in values["rollouts"]},
        verdicts={place: Verdict(**v) for place, v in values["verdicts"]},
        begun={place: _segments(s) for place, s in values["begun"]},
        replaced=[(_rollout(r), Verdict(**v)) for r, v in values["replaced"]],
        cancelled=[_rollout(r) for r in values["cancelled"]],
    )


def _rollout(values: dict[str, Any]) -> Rollout:
    return Rollout(**{**values, "segments": _segments(values["segments"])})


def _segments(values: Sequence[dict[str, Any]]) -> tuple[Segment, ...]:
    def tuples(segment: dict[str, Any]) -> dict[str, Any]:
        return {name: tuple(value) if isinstance(value, list) else value for name, value in segment.items()}

    return tuple(Segment(**tuples(s)) for s in values)
