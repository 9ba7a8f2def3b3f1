"""vLLM's side of decode_vs_vllm_cpu: its own engine in its own environment, a round for each request.

Run by beside.py with the file that describes the work; the settings and what they are for are in decode_vs_vllm_cpu.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from workers import Line


def main() -> None:
    """Load, then answer for rounds until nobody asks for more."""
    line = Line()  # before vLLM is imported: it prints
    from vllm import LLM, SamplingParams, __version__

    work: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    longest = max(map(len, work["prompts"])) + work["tokens"]
    engine = LLM(model=work["model"], max_model_len=longest, **work["engine"])
    prompts: Any = [{"prompt_token_ids": ids} for ids in work["prompts"]]
    line.answer({"version": __version__})
    while True:
        asked = line.next()
        engine.reset_prefix_cache()  # in training the weights have changed since the last round
        sampling = SamplingParams(
            n=work["samples"],
            temperature=1.0,
            max_tokens=asked["tokens"],
            ignore_eos=True,
            logprobs=work["logprobs"],
            detokenize=False,
        )
        start = time.perf_counter()
        found = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        count = sum(len(answer.token_ids) for request in found for answer in request.outputs)
        line.answer({"rate": count / seconds, "tokens": count})


if __name__ == "__main__":
    main()
