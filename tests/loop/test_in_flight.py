"""What a checkpoint keeps of answers that are still being made."""

from __future__ import annotations

import pytest

from assay.loop.in_flight import with_partials
from assay.loop.making import Asking, Making
from assay.records import Prompt, Rollout, Segment
from assay.rollout.sampling import Sampling
from assay.rollout.thinking import ThinkingBudget

ASKING = Asking(Sampling(max_tokens=12), seed=1, thinking=ThinkingBudget(4, "</t>", (8, 9)))
FORCED = Segment("forced", (8, 9))


def policy(n: int) -> Segment:
    return Segment("policy", (5,) * n, (-1.0,) * n, (0,) * n)


@pytest.mark.parametrize(
    ("segments", "text", "kept"),
    [
        ((policy(3),), "aaa", (policy(3),)),  # still on its way to the budget
        ((policy(4),), "aaaa", (policy(4), FORCED)),  # stopped there, and nobody has heard of it yet
        ((policy(4),), "a</t>a", (policy(4),)),  # it closed the span itself
        ((policy(4), FORCED, policy(3)), "aaaa</t>aaa", (policy(4), FORCED, policy(3))),  # beyond it
    ],
)
def test_an_answer_at_its_thinking_budget_goes_on_with_the_span_closed(segments, text, kept):
    making = Making(0, Prompt("p", (), "p", (1,)), size=1, keep=1)
    partial = Rollout("p", 0, segments, "cancelled", text)
    assert with_partials(making, {0: partial}, ASKING).begun == {0: kept}
