"""Random numbers of a run and of a rollout: pure functions of who asks, whatever the batch, order and engine."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np

from assay.rollout.engine import Request


def uniforms(seed: int, admission: int, prompt_id: str, index: int, n: int) -> np.ndarray:
    """Return ``n`` uniforms in [0, 1), float64 (n,): the i-th decides the i-th token of one rollout.

    Philox (a counter-based generator, Salmon et al. 2011) keyed by a hash of the four names. Fewer are a
    prefix of more, and no two rollouts share a stream.

    >>> a = uniforms(seed=1, admission=7, prompt_id="p", index=0, n=4)
    >>> bool((a[:2] == uniforms(1, 7, "p", 0, 2)).all()), bool((a == uniforms(1, 7, "p", 1, 4)).any())
    (True, False)
    """
    name = f"{seed}\x1f{admission}\x1f{index}\x1f{prompt_id}".encode()
    key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
    words = np.random.Philox(key=key).random_raw(n)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seed_of(request: Request, index: int, held: int, bits: int = 63) -> int:
    """A seed of ``bits`` bits for a generator elsewhere: of the run, the admission, the prompt, the index, and the
    tokens that the answer holds already, so that what goes on behind them draws other numbers.

    >>> from assay.records import Prompt
    >>> from assay.rollout.sampling import Sampling
    >>> request = Request(3, Prompt("p", (), "", (1,)), 1, Sampling(), seed=5)
    >>> seed_of(request, 0, 0) == seed_of(request, 0, 0), seed_of(request, 0, 0) == seed_of(request, 0, 7)
    (True, False)
    """
    name = f"{request.seed}\x1f{request.id}\x1f{index}\x1f{held}\x1f{request.prompt.id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> (64 - bits)


def stream_seed(seed: int, stream: str) -> int:
    """A seed of its own for each purpose (training, evaluation) that draws from one run seed.

    >>> stream_seed(0, "train") == stream_seed(0, "train"), stream_seed(0, "train") == stream_seed(0, "eval")
    (True, False)
    """
    return zlib.crc32(f"{seed}/{stream}".encode())
