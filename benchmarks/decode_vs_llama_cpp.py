"""Decoding: the native engine beside llama.cpp. Goal: 3 times its rate or more.

Both sides do the work of decoding.py in turn, on all cores. llama.cpp is its own server with continuous batching, as
fast as was found by trial (two cores with AVX-512 but neither bfloat16 nor AMX instructions, answers of 24 tokens):

- compiled on the machine, with products by MKL: 420 tokens/s; without MKL 352; the wheel that is published compiled
  (xllamacpp, AVX2) has less than half of that
- the model in float32: 352 without MKL, 420 with it; Q4_0, which is another model with coarser weights: 367 and 373;
  Q8_0 286; by the processor's time Q4_1 needs 2.0 and F16 1.2 times as much as float32
- a slot for every answer and a prompt's answers as one request (`n_cmpl`), so that it is prefilled once; each slot with
  a cache of its own, in float16: one for all makes every answer attend to everyone's cells; in float32 243 instead of
  352, in bfloat16 412 instead of 425
- flash attention: 352, without it 272
- sampling in the server's loop: 352, as part of the graph (`--backend-sampling`) 329; no sampler but the draw
- physical batches of 128, 512 (its default), 1024 tokens: no difference; a thread for each core
- no prompt kept from one round to the next: under new weights it could not be. It would be worth a tenth.

With the log-probs of the sampled tokens (`--logprobs`), which training needs and Assay's engine always returns, it is
an eighth slower: 373. It is measured without.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import beside
import decoding
import gguf_model
import harness

from assay.data.demo_model import resolve_model_path

SERVER = (
    *("--threads", str(os.cpu_count()), "--threads-batch", str(os.cpu_count())),
    *("--flash-attn", "on", "--no-kv-unified"),
    *("--cache-ram", "0", "--no-cache-idle-slots", "--no-warmup", "--log-verbosity", "0"),
)
REQUEST = {"temperature": 1.0, "samplers": [], "ignore_eos": True, "cache_prompt": False, "return_tokens": True}


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    decoding.options(parser)
    parser.add_argument("--weights", choices=tuple(gguf_model.KINDS), default="f32", help="of llama.cpp")
    parser.add_argument("--logprobs", action="store_true", help="have llama.cpp return log-probs too")
    chosen = parser.parse_args()
    request = REQUEST | {"n_probs": int(chosen.logprobs)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        gguf_model.write_gguf(Path(resolve_model_path(chosen.model)), chosen.weights, file)
        settings = {"server": SERVER, "request": request}
        beside.measure("decode_vs_llama_cpp", "llama_cpp", settings, chosen, told={"gguf": str(file)})


if __name__ == "__main__":
    main()
