"""alarms.jsonl: one JSON object an alarm, in the order in which they were raised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from assay.errors import UserError
from assay.track.alarms import Alarm, Example
from assay.track.files import write_aside
from assay.track.text import storable


class AlarmLog:
    """The alarms of a run, written whole at each one: they are few. Raises :class:`UserError` for a broken file."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.alarms: tuple[Alarm, ...] = tuple(read_alarms(self.path))
        """Those raised so far."""

    @property
    def names(self) -> frozenset[str]:
        """The names of those raised so far."""
        return frozenset(alarm.name for alarm in self.alarms)

    def append(self, alarm: Alarm) -> None:
        """Write one more."""
        self._write((*self.alarms, alarm))

    def truncate_after(self, step: int) -> None:
        """Forget what was raised after ``step``, for a run that goes on from there."""
        kept = tuple(alarm for alarm in self.alarms if alarm.step <= step)
        if kept != self.alarms:
            self._write(kept)

    def _write(self, alarms: Sequence[Alarm]) -> None:
        text = "".join(json.dumps(asdict(alarm), ensure_ascii=False) + "\n" for alarm in alarms)

        def write(aside: Path) -> None:
            aside.write_text(storable(text), encoding="utf-8")

        write_aside(self.path, write)
        self.alarms = tuple(alarms)


def read_alarms(path: Path) -> list[Alarm]:
    """Read a log; a missing file is an empty one. Raises :class:`UserError` with file and row for a broken line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            found.append(Alarm(**{**row, "examples": tuple(Example(**example) for example in row["examples"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, row {number}: not an alarm ({error}); delete that line") from None
    return found
