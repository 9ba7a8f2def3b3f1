"""How near decoding and the update come to the machine's arithmetic limit. Goal: half of it or more, each.

The limit is the rate of one large matrix product, in the same precision and measured in the same rounds, for machines
drift. Freed memory is kept, and two rounds do not count: what memory costs on a machine that hands it out anew is not
arithmetic. The share is the floating-point operations that the work needs (assay/policy/flops.py: products with weights
and those of attention, a shared prompt once, three times forward for what is trained; nothing that is computed twice),
over the seconds it took, over that rate. Decoding: 16 prompts x 8 answers x 64 tokens. Update: 16 groups of 8 answers
of 24.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import decoding
import harness
import learning

from assay.hardware import product_rate
from assay.policy.flops import costs_of, decode_flops, update_flops
from assay.policy.model import load_model, pick_device
from assay.recipe.schema import ModelRecipe


def main() -> None:
    """Measure the limit and both halves of a step, and print their shares."""
    parser = harness.arguments(__doc__ or "")
    harness.device_option(parser)
    decoding.options(parser, dtypes=decoding.FLOATS)
    parser.add_argument("--answer", type=int, default=24, help="length of the answers that are learned from")
    chosen = parser.parse_args()
    harness.keep_freed_memory()
    device = pick_device(chosen.device)
    work = decoding.work_of(chosen, device.type)
    model = load_model(work.place, ModelRecipe(path=work.place), device)
    native = decoding.Native(work, device, model)
    policy = learning.policy_of(
        work, model, device, **({"tokens_per_microbatch": 1024} if device.type == "cpu" else {})
    )
    batch = learning.batch_of(work.prompts, native.answers(0, chosen.answer), policy)
    costs = costs_of(model)
    seconds: dict[str, list[float]] = {"decode": [], "update": []}

    def decode(seed: int) -> int:
        before = native.stats
        native.answers(seed)
        return decode_flops(costs, native.stats.since(before))

    def update(_: int) -> int:
        found = policy.update(batch, 0.0)
        return update_flops(costs, found.trained, found.scored)

    def rate(name: str, once: Callable[[int], int]) -> Callable[[int], float]:
        def side(number: int) -> float:
            flops, taken = harness.timed(lambda: once(number), device.type)
            seconds[name].append(taken)
            return flops / taken / 1e9

        return side

    for _ in range(2):  # warm up: the optimizer's state is made, and the heap grows
        native.answers(0), update(0)
    sides = harness.alternate(
        {
            "gemm": lambda _: product_rate(device.type, work.precision) / 1e9,
            "decode": rate("decode", decode),
            "update": rate("update", update),
        },
        chosen.rounds,
        "GFLOP/s",
    )
    tokens = {"decode": work.rows * work.tokens, "update": batch.n_tokens}
    shares = {name: harness.median_ratio(sides[name], sides["gemm"]) for name in tokens}
    details = {
        name: {
            "% of the limit": 100 * shares[name],
            "tokens/s": tokens[name] / statistics.median(seconds[name]),
        }
        for name in tokens
    }
    settings = harness.settings(chosen, dtype=work.precision)
    worst = min(shares.values())
    harness.finish("limit", worst, sides, settings, chosen.save, details=details, device=device.type)


if __name__ == "__main__":
    main()
