"""Too many invalid verdicts end a run with their reason: a broken verifier teaches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assay.errors import AssayError, UserError
from assay.records import Verdict


def refuse_invalid(verdicts: Sequence[Verdict], max_invalid: float) -> None:
    """Raise with the commonest reason when more than this share of the verdicts is invalid.

    UserError where a verifier raised, which its author can mend; AssayError where it was slow or out of reach.
    """
    bad = [v for v in verdicts if not v.valid]
    if len(bad) > max_invalid * len(verdicts):
        (outcome, message), count = Counter((v.outcome, v.message) for v in bad).most_common(1)[0]
        kind = UserError if outcome == "verifier_error" else AssayError
        raise kind(
            f"{len(bad)} of {len(verdicts)} verdicts are invalid, more than reward.max_invalid={max_invalid:g} "
            f"allows; {count} times {outcome}: {message}"
        )
