"""Decoding: the native engine beside transformers' `generate`. Goal: 3 times its rate or more.

Both sides answer the same prompts (decoding.py), in the precision that is faster on this machine. transformers gets
what serves it best: one padded batch of all rows, its default (dynamic) cache, SDPA, inference mode.
"""

from __future__ import annotations

import time

import decoding
import harness
import torch

from assay.policy.model import pick_device


def transformers_generate(native: decoding.Native, work: decoding.Work, tokens: int, seed: int) -> float:
    """Tokens per second of `generate`, on the engine's own model, on one left-padded batch."""
    torch.manual_seed(seed)
    end, device = native.tokenizer.eos_token_id, native.model.device
    rows = [list(p.token_ids) for p in work.prompts for _ in range(work.samples)]
    width = max(map(len, rows))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = native.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=end,
        ).cpu()
    return (out.shape[1] - width) * len(rows) / (time.perf_counter() - start)


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    harness.device_option(parser)
    decoding.options(parser)
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    harness.keep_freed_memory()  # of both sides: it helps transformers
    work = decoding.work_of(chosen, device.type)
    native = decoding.Native(work, device)
    native.rate(0, tokens=2), transformers_generate(native, work, 2, 0)  # warm up
    measured = {
        "assay": native.rate,
        "transformers": lambda seed: transformers_generate(native, work, work.tokens, seed),
    }
    if device.type == "cuda":
        launched = decoding.Native(work, device, native.model, graphs=False)
        launched.rate(0, tokens=2)
        measured["assay without graphs"] = launched.rate
    sides = harness.alternate(measured, chosen.rounds, "tokens/s")
    ratio = sides["assay"].median / sides["transformers"].median
    settings = harness.settings(chosen, dtype=work.precision)
    harness.finish("decode_vs_transformers", ratio, sides, settings, chosen.save, device=device.type)


if __name__ == "__main__":
    main()
