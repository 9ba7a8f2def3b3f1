"""docs/benchmarks.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

NOTES = {
    "decode_vs_transformers": (
        "The goal is 3. How far each is from the rate of one large product is measured in `limit`; `assay train "
        "RECIPE profile=true` says which operations the rest is. What was gained, each beside its alternative "
        "in choices.py: one product for queries, keys and values and one for gate and up; weights arranged for "
        "the products once a version; steps in the trainer's thread, so that there is one OpenMP pool; a "
        "group's prompt read once a step; all that is not a product compiled for the processor, in bfloat16 "
        "products too. "
        "`rollout.dtype: int8` is faster, at a price: its log-probs are further from the trainer's."
    ),
    "decode_vs_vllm_cpu": ("The goal is 2. Both engines on all cores, in turn; vLLM's settings are in decode_vllm.py."),
    "decode_vs_llama_cpp": (
        "The goal is 3. Both engines on all cores, in turn; llama.cpp's settings, the fastest that were found, "
        "are in decode_llama_cpp.py: its server, compiled here with MKL."
    ),
    "limit": (
        "The goal is 0.5. The products that the work needs, over its seconds, over the rate of one large "
        "product. `assay train RECIPE profile=true` has a table of the operations of each phase."
    ),
    "choices": (
        "What is used in decoding over transformers' forward. Each way to decode or to update differs from "
        "the one that is used in what its name says. Differences between updates that are smaller than their ranges "
        "say nothing; many tokens at once hold more memory (`update.tokens_per_microbatch`)."
    ),
    "scaling": (
        "The goal is at most 1.15. Each size is a step in a fresh process, under one token budget; a larger "
        "batch takes no more memory."
    ),
    "step_vs_trl": (
        "The goal is 5. Seconds of a whole step; judging overlaps sampling on Assay's side. TRL runs compiled. "
        "What all prompts of a micro-batch begin with (here 35 of 46 tokens, the chat template's) is computed "
        "once; what has no advantage is left out."
    ),
    "memory_vs_trl": (
        "The goal is at most 0.7. Peak resident memory of a step, verifier processes included. More than two of "
        "the gigabytes are float32 weights, gradients and the optimizer's moments, the same on both sides. The "
        "engine sleeps during the update, and what generation or update has freed goes back to the system "
        "before the other takes its own (else the holes in the heap add up)."
    ),
    "time_to_accuracy_vs_trl": (
        "The goal is 5. Seconds of training; evaluation is outside the clock. Both sides learn at the same pace "
        "by steps, so the ratio is that of the steps' seconds: see `step_vs_trl`."
    ),
    "plan_check": (
        "The goal is .85 to 1.15. What `assay plan` makes of a synchronous run of two processes, beside runs of "
        "the same recipe whose processes work at once (docs/plan.md). The runs take turns of a few steps."
    ),
    "sandbox": (
        "The goals are 5, and 50 programs a second. The same trivial program on each side, as many at a time as "
        "there are cores. `tests`: a function in one sandbox, called by its asserts from a second one."
    ),
}
"""What a ratio means, by benchmark."""
NARROW = {
    "decode_vs_vllm_cpu": (
        "Our decoding is at more than four fifths of the rate of one large product (see `limit`), prefill and sampling "
        "included; what is left is attention, which waits for keys and values, a prefill's own attention and copies, "
        "and sampling. What brought it from 1.6: products of our own (oneDNN's at 128 rows waited for weights), a step "
        "as one call, scores summed in registers, rotations from a table, sixteen powers at once. Tried without clear "
        "gain: keys and values in large pages, asking for them during the products before. Next: prompts kept once for "
        "all answers to them, so that a prefill copies nothing."
    ),
    "scaling": (
        "The dearest is decoding 16 answers of 512 tokens. A step of 16 rows waits for memory: a token's share of the "
        "weights is 17 MB, and to that come the keys and values before it, 7 MB on average (1.4 MB at 32 tokens). "
        "Everything else costs as much in a large step as in a small one, or less. Next: keys and values in fewer bits."
    ),
    "time_to_accuracy_vs_trl": (
        "Two pairs, whose own ratios are 9.2 and 3.8: how many steps it takes is the draw of answers (6 and 4 against "
        "8 and 2). By the seconds of a step they are at 6.9 and 7.5."
    ),
    "step_vs_trl": (
        "In bfloat16 torch's own way leaves much of an update to other things than products. What is done "
        "about it: attention of packed trees, norms and gates are compiled for the processor; the head's products in "
        "bfloat16 less the target's logit, which keeps log-probs to some thousandth of themselves; weights' gradients "
        "laid as the weights are, since torch is slow to cast transposed ones; rows of an embedding added where they "
        "belong, not to a matrix of zeros."
    ),
    "memory_vs_trl": (
        "In bfloat16 both sides keep activations half as large, and Assay a bfloat16 copy of the weights for "
        "the time of an update (134.5 million numbers), so that each is cast once and not once a micro-batch."
    ),
}
"""What else there is to say of a benchmark in bfloat16."""
WIDE = {
    "decode_vs_transformers": "What is left is mostly the products themselves.",
    "decode_vs_llama_cpp": (
        "Both sides do the same products by the same library, and what is left between them is attention and sampling."
    ),
    "step_vs_trl": (
        "In float32 both sides are mostly matrix products: at the whole rate of one large product Assay's own "
        "step would take some three fifths of its time, and a ratio of 5 would need four fifths of that rate. "
        "Measured in micro-batches of 768 tokens, after one uncounted step."
    ),
    "memory_vs_trl": "In micro-batches of 768 tokens.",
    "choices": (
        "Measured before there were compiled kernels (the ratio is that of packed products), and when memory was kept "
        "from step to step: the row `memory given back` is what is used now."
    ),
    "scaling": (
        "The worst is decoding 16 answers of 512 tokens: a token reads the keys and values before it, 14 MB "
        "on average (3 MB at 32 tokens), beside 34 MB of weights, its share of what 16 rows read together. "
        "Next: keys and values in fewer bits."
    ),
    "decode_vs_vllm_cpu": (
        "Both are bound by the same matrix products: an engine that did nothing else, at the whole rate of "
        "one large product, would be about twice as fast as either."
    ),
}
"""And of its result on a processor without instructions for bfloat16, in float32."""
HEADLINES = {
    "limit": "The smaller share of the machine's arithmetic limit",
    "plan_check": "The predicted step over the measured one, where it is furthest from 1",
    "scaling": "The worst cost of a token, relative to the smallest size of its row",
}
"""What the number of a benchmark is; of all others a ratio of medians."""


def section(result: dict[str, Any]) -> list[str]:
    """One benchmark: both sides, the ratio, the machine."""
    machine, settings = result["machine"], result["settings"]
    name = result["benchmark"]
    mark = f", {result['mark']}" if result.get("mark") else ""
    headline = HEADLINES.get(name, "Ratio of medians")
    notes = {"float32": WIDE, "bfloat16": NARROW}.get(harness.precision(settings) or "", {})
    more = notes.get(name, "") if result.get("device", "cpu") == "cpu" else ""
    where = [w for w in (result.get("device"), harness.precision(settings)) if w in ("cuda", "mps", "float32")]
    lines = [
        f"## {name}" + (f" ({', '.join(where)})" if where else ""),
        "",
        f"{headline}: **{result['ratio']:.2f}**{mark}. {NOTES.get(name, '')} {more}".strip(),
        "",
        "| side | median | range | rounds |",
        "| --- | --- | --- | --- |",
    ]
    for label, side in result["sides"].items():
        low, high = min(side["rounds"]), max(side["rounds"])
        lines.append(
            f"| {label} | {side['median']:,.1f} {side['unit']} | {low:,.1f} to {high:,.1f} | {len(side['rounds'])} |"
        )
    lines += further(result.get("details", {}))
    return [
        *lines,
        "",
        "Settings: " + ", ".join(f"{k} {v}" for k, v in settings.items()) + ".",
        "",
        f"Machine: {described(machine)}; {result['date']}.",
        "",
    ]


def described(machine: Mapping[str, Any]) -> str:
    """The machine in a line."""
    parts = [machine["processor"], f"{machine['cores']} cores"]
    if gpu := machine.get("gpu"):
        parts.append(f"{gpu['name']} with {gpu['memory_gib']} GiB, driver {gpu['driver']}, CUDA {gpu['cuda']}")
    parts += [f"{rate:,} GFLOP/s in {name}" for name, rate in machine["gemm_gflops"].items()]
    return f"{', '.join(parts)}; torch {machine['torch']}, transformers {machine['transformers']}"


def further(details: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table of the figures that a benchmark has beside its ratio: a row for each, a column for each side."""
    if not details:
        return []
    names = dict.fromkeys(name for figures in details.values() for name in figures)
    rows = [[name, *(harness.figure(figures.get(name, "")) for figures in details.values())] for name in names]
    table = [["", *details], ["---"] * (len(details) + 1), *rows]
    return ["", *(f"| {' | '.join(row)} |" for row in table)]


def text(folder: Path) -> str:
    """The page about all results in a folder."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    results = [r for r in results if "ratio" in r]  # studies have results of another form, and pages of their own
    intro = [
        "# Benchmarks",
        "",
        "Made by `make bench` (`benchmarks/page.py`) from `benchmarks/results/`. Both sides run in turn.",
        "",
    ]
    return "\n".join([*intro, *(line for r in results for line in section(r))])


def main() -> None:
    """Write the page."""
    PAGE.write_text(text(harness.RESULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
