import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError, UserError
from assay.kernels.draw import DrawKernel
from assay.rollout.sampling import Sampling, draw_kernel, sample

KERNELS = pytest.mark.parametrize("kernel", [None, draw_kernel(torch.float32)], ids=["torch", "kernel"])


def draws(logits: torch.Tensor, sampling: Sampling, n: int, kernel: DrawKernel | None) -> torch.Tensor:
    uniforms = torch.from_numpy(np.random.Generator(np.random.Philox(3)).random(n))
    return sample(logits.expand(n, -1), uniforms, [sampling] * n, kernel).tokens


def kept_by_definition(logits: torch.Tensor, s: Sampling) -> list[float]:
    """Probabilities after temperature, top-k, top-p, min-p, one token at a time in plain Python."""
    scaled = (logits.double() / s.temperature).tolist()
    peak = max(scaled)
    p = [math.exp(x - peak) for x in scaled]
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    order = order[: s.top_k] if s.top_k else order
    mass, taken, kept = sum(p[i] for i in order), 0.0, []
    for i in order:
        if s.top_p < 1 and taken >= s.top_p * mass:
            break
        taken += p[i]
        kept.append(i)
    kept = [i for i in kept if p[i] >= s.min_p * p[order[0]]]
    total = sum(p[i] for i in kept)
    return [p[i] / total if i in kept else 0.0 for i in range(len(p))]


@KERNELS
@pytest.mark.parametrize(
    "settings_",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=1.7, top_k=5),
        Sampling(top_p=0.8),
        Sampling(temperature=0.8, min_p=0.15),
        Sampling(top_k=9, top_p=0.7, min_p=0.05),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies_are_those_of_the_defined_distribution(settings_, kernel):
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1)) * 1.5
    expected = np.array(kept_by_definition(logits[0], settings_))
    n = 20_000
    counts = np.bincount(draws(logits, settings_, n, kernel).numpy(), minlength=40)
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    chi2 = float((((counts - n * expected) ** 2)[live] / (n * expected[live])).sum())
    freedom = int(live.sum()) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)


@KERNELS
def test_a_large_vocabulary_is_drawn_across_blocks(kernel):
    logits = torch.full((1, 49_153), -20.0)
    hot = [0, 255, 256, 511, 30_000, 49_151, 49_152]
    logits[0, hot] = 5.0
    counts = torch.bincount(draws(logits, Sampling(), 700, kernel), minlength=49_153)
    assert counts[hot].sum() == 700
    assert (counts[hot] - 100).abs().max() < 42


@KERNELS
def test_the_uniform_number_is_the_cumulative_probability(kernel):
    probabilities = torch.tensor([0.25, 0.0, 0.5, 0.25])
    uniforms = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53], dtype=torch.float64)
    drawn = sample(probabilities.log().expand(6, -1), uniforms, [Sampling()] * 6, kernel)
    assert drawn.tokens.tolist() == [0, 0, 2, 2, 3, 3]
    assert drawn.kept_logprobs is None
    assert drawn.full_logprobs.tolist() == pytest.approx([math.log(p) for p in (0.25, 0.25, 0.5, 0.5, 0.25, 0.25)])


def test_top_p_keeps_the_crossing_token_and_breaks_ties_by_index():
    logits = torch.tensor([[0.3, 0.3, 0.2, 0.2]]).log()
    uniforms = torch.linspace(0, 0.999, 50, dtype=torch.float64)

    def kept(**cut):
        return set(sample(logits.expand(50, -1), uniforms, [Sampling(**cut)] * 50).tokens.tolist())

    assert kept(top_p=0.25) == {0}
    assert kept(top_p=0.5) == {0, 1}
    assert kept(top_p=0.61) == {0, 1, 2}
    assert kept(top_k=3) == {0, 1, 2}
    assert kept(min_p=0.7) == {0, 1}
    assert kept(min_p=0.6) == {0, 1, 2, 3}


def test_rows_have_their_own_settings():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2))
    rows = [Sampling(greedy=True, temperature=0.5), Sampling(), Sampling(top_k=1), Sampling(top_p=0.3)]
    uniforms = torch.tensor([0.9, 0.9, 0.9, 0.1], dtype=torch.float64)
    together = sample(logits, uniforms, rows)
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1], uniforms[i : i + 1], [row])
        assert alone.tokens[0] == together.tokens[i]
        assert alone.full_logprobs[0] == pytest.approx(float(together.full_logprobs[i]), abs=1e-6)
    assert together.tokens[0] == logits[0].argmax()
    assert together.tokens[2] == logits[2].argmax()
    assert together.kept_logprobs is not None
    assert together.kept_logprobs[2] == 0
    assert together.kept_logprobs[1] == together.full_logprobs[1]
    assert together.kept_logprobs[3] > together.full_logprobs[3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", [Sampling(), Sampling(greedy=True), Sampling(top_k=2)])
def test_broken_logits_are_an_error_not_a_token(bad, row):
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    with pytest.raises(AssayError, match=r"1 of 3 rows \(first: row 1\)"):
        sample(logits, torch.full((3,), 0.5, dtype=torch.float64), [row] * 3)


@pytest.mark.parametrize(
    "field",
    [{"temperature": 0}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"min_p": 2}, {"max_tokens": 0}],
)
def test_settings_out_of_range_are_refused_by_name(field):
    with pytest.raises(UserError, match=next(iter(field))):
        Sampling(**field)


finite = st.floats(-30, 30, width=32)
settings_strategy = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    top_k=st.integers(0, 12),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    greedy=st.booleans(),
)


@settings(deadline=None, max_examples=50)
@given(
    row=st.lists(st.one_of(finite, st.just(-math.inf)), min_size=1, max_size=600).filter(lambda r: max(r) > -40),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    sampling=settings_strategy,
)
def test_what_is_drawn_was_kept_and_its_logprobs_are_right(row, uniform, dtype, sampling):
    logits = torch.tensor([row]).to(dtype)
    drawn = sample(logits, torch.tensor([uniform], dtype=torch.float64), [sampling])
    token = int(drawn.tokens[0])
    reference = (logits[0].double() / sampling.temperature).log_softmax(-1)
    assert math.isfinite(float(reference[token]))
    assert float(drawn.full_logprobs[0]) == pytest.approx(float(reference[token]), abs=2e-4)
    assert (drawn.kept_logprobs is not None) == sampling.cuts
    if drawn.kept_logprobs is not None:
        assert drawn.full_logprobs[0] - 1e-6 <= drawn.kept_logprobs[0] <= 1e-6
    if sampling.greedy:
        assert logits[0, token] == logits[0].max()


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    low=st.floats(0, 1, exclude_max=True),
    high=st.floats(0, 1, exclude_max=True),
    shift=st.floats(-20, 20),
)
def test_tokens_are_monotone_in_the_uniform_and_blind_to_a_shift_of_the_logits(seed, low, high, shift):
    logits = torch.randn(1, 700, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()
    low, high = min(low, high), max(low, high)
    uniforms = torch.tensor([low, high], dtype=torch.float64)
    drawn = sample(logits.expand(2, -1), uniforms, [Sampling()] * 2)
    moved = sample((logits + shift).expand(2, -1), uniforms, [Sampling()] * 2)
    assert drawn.tokens[0] <= drawn.tokens[1]
    cumulative = logits[0].double().softmax(-1).cumsum(-1)
    for tokens in (drawn.tokens, moved.tokens):
        assert (cumulative[tokens] > uniforms - 1e-4).all()
        assert (cumulative[tokens - 1] * (tokens > 0) < uniforms + 1e-4).all()
    if (moved.tokens == drawn.tokens).all():
        assert torch.allclose(moved.full_logprobs, drawn.full_logprobs, atol=1e-4)
