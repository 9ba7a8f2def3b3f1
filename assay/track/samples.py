"""Which completions are shown: one good and one bad of a group, chosen by rule and not by taste."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from assay.track.rollouts import LoggedRollout


def good_and_bad(rows: Sequence[LoggedRollout]) -> list[LoggedRollout]:
    """Return the best and the worst completion of one group, by reward; the lower index wins a tie.

    The group is one of the mixed ones, the ``step`` modulo their number-th in the order of admission, so
    that nobody picks it. With no mixed group the best and the worst of all rows are returned, or one row
    when all rewards are equal. Rows without a reward are never chosen; without any that has one the list is
    empty.
    """
    valid = sorted((r for r in rows if r.reward is not None), key=lambda r: (r.admission, r.prompt_id, r.index))
    groups = [list(g) for _, g in groupby(valid, key=lambda r: (r.admission, r.prompt_id))]
    mixed = [g for g in groups if len({r.reward for r in g}) > 1]
    pool = mixed[valid[0].step % len(mixed)] if mixed else valid
    if not pool:
        return []
    good = max(pool, key=lambda r: r.reward or 0.0)
    bad = min(pool, key=lambda r: r.reward or 0.0)
    return [good] if good.reward == bad.reward else [good, bad]
