"""``row``: the row says how it is judged: ``kind`` names its verifier and ``tests`` hold what the answer must pass.

Accepts and rejects what the verifier of that kind does (see :mod:`assay.reward.line`): the same rows that
``assay score`` takes can be trained on. A row whose kind or tests cannot be read is a ``verifier_error``, and so
is one that names a verifier that asks a service: give that one a part of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import UserError
from assay.recipe.schema import Section
from assay.reward.line import read_line
from assay.reward.verifier import Case, Judgement, Verifier, register, verifier_error, verifiers


class RowOptions(Section):
    """Options of ``row``."""

    kind: str = ""
    """The kind of every row; empty: each row's column `kind`."""


@register("row", RowOptions)
@dataclass(frozen=True)
class Row:
    """The score that the row's own verifier gives."""

    options: RowOptions
    built: dict[str, Verifier] = field(default_factory=dict)
    """Verifiers by name and options: each is built once per worker."""

    def __call__(self, case: Case) -> Judgement:
        """Find the verifier, build it, judge."""
        line = {**case.columns, "completion": case.completion, "gold": case.gold}
        try:
            read = read_line(line, "the row", self.options.kind or None)
            if verifiers[read.verifier].remote:
                return verifier_error(f"the row's kind {read.verifier!r} asks a service: make it a part of its own")
            judge = self._verifier(read.verifier, read.options)
        except UserError as error:
            return verifier_error(str(error))
        prompt = case.prompt or read.case.prompt
        return judge(replace(case, columns=read.case.columns, prompt=prompt, finish=read.case.finish))

    def canary(self, gold: Any) -> str:
        """The gold answer: what is tried is whether a verdict comes."""
        return str(gold)

    def _verifier(self, name: str, options: Mapping[str, Any]) -> Verifier:
        key = json.dumps([name, dict(options)], sort_keys=True, default=str)
        if key not in self.built:
            self.built[key] = verifiers[name](options)
        return self.built[key]
