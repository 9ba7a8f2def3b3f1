"""Decoding: the native engine beside vLLM on the CPU. Goal: twice its rate or more.

Both sides do the work of decoding.py in turn, on all cores. vLLM's settings are the fastest found by trial (two cores
with AVX-512 but neither bfloat16 nor AMX instructions; tokens per second, answers of 24 tokens):

- one process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`): 292; with its scheduler and its worker in processes of their own and
  both cores bound to the worker: 279. It also sleeps between rounds then
- Intel's OpenMP and tcmalloc in LD_PRELOAD, as its documentation advises: 292; without tcmalloc: 283. The first comes
  with vLLM, the second is used where the system has it (Debian: libtcmalloc-minimal4)
- the precision that is fast on the machine, here float32: bfloat16 has a quarter of its rate without instructions
- blocks of 32 tokens, its smallest, so that a prompt's answers share its first block: 426; with its default of 128,
  more than the prompts have, each prompt is prefilled for each of its answers: 292
- compiled: 475; eager: 420
- at most 1,024 tokens a step: 438; 4,096: 420. A place for every answer
- the log-probs of the sampled tokens, which training needs, are on: they cost nothing that could be measured.

The whole work (answers of 64 tokens) then runs at 529. What a compiled graph and the thread pool need to warm up is
done in a round that is not counted.
"""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

import beside
import decoding
import harness
import peers

from assay.hardware import fast_precision


def environment(python: Path) -> dict[str, str]:
    """What is set before vLLM starts."""
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    allocator = ctypes.util.find_library("tcmalloc_minimal")
    if allocator is None:
        print("vLLM would be a little faster with tcmalloc, which this system lacks (Debian: libtcmalloc-minimal4)")
    preloaded = [str(openmp) if openmp.exists() else None, allocator]
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "LD_PRELOAD": ":".join(name for name in preloaded if name),
    }


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    decoding.options(parser)
    chosen = parser.parse_args()
    engine = {
        "dtype": fast_precision("cpu"),
        "block_size": 32,
        "max_num_seqs": chosen.prompts * chosen.samples,
        "max_num_batched_tokens": 1024,
        "enable_prefix_caching": True,
        "enforce_eager": False,
    }
    settings = {"engine": engine, "logprobs": 0}
    beside.measure("decode_vs_vllm_cpu", "vllm", settings, chosen, environment=environment(peers.python_of("vllm")))


if __name__ == "__main__":
    main()
