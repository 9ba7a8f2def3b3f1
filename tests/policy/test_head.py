"""The fused head: log-probs, entropies and gradients of the plain formula, logits only a chunk at a time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from assay.policy.head import Head, _LogProbs
from assay.policy.narrow import NarrowWeights

WIDTH, VOCABULARY = 6, 31
EXACT = NarrowWeights(torch.float64)


def a_model(bias=False, dtype=torch.float64, **config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        linear = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)
    text = SimpleNamespace(**config)
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), get_output_embeddings=lambda: linear)


def inputs(n, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = (3 * torch.randn(n, WIDTH, generator=generator, dtype=dtype)).requires_grad_()
    return hidden, torch.randint(VOCABULARY, (n,), generator=generator)


def plain(model, hidden, targets, scale, temperature):
    logs = torch.log_softmax(model.get_output_embeddings()(hidden) * scale / temperature, -1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 12),
    chunk=st.integers(1, 13),
    temperature=st.sampled_from([0.6, 1.0, 1.7]),
    scale=st.sampled_from([1.0, 0.25]),
    bias=st.booleans(),
    entropy=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_formula(n, chunk, temperature, scale, bias, entropy):
    model = a_model(bias, logit_scale=scale)
    head = Head(model, temperature, chunk, EXACT, entropy)
    hidden, targets = inputs(n)
    upstream = torch.linspace(-2, 3, n, dtype=torch.float64)
    results = []
    for logprobs, entropies in (head(hidden, targets), plain(model, hidden, targets, scale, temperature)):
        loss = (logprobs * upstream).sum() + (entropies * upstream.flip(0)).sum() * (0.5 if entropy else 0.0)
        wanted = [hidden, *model.get_output_embeddings().parameters()]
        results.append([logprobs, entropies, *torch.autograd.grad(loss, wanted)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("entropy", [False, True])
def test_the_derivative_is_the_limit_of_differences(entropy):
    hidden, targets = inputs(5)
    linear = a_model(bias=True).get_output_embeddings()

    def function(states, weight, bias):
        logprobs, entropies = _LogProbs.apply(states, weight, bias, targets, 0.7, 2, entropy, EXACT)
        return (logprobs, entropies) if entropy else logprobs

    assert torch.autograd.gradcheck(function, (hidden, linear.weight, linear.bias))


def test_only_an_entropy_bonus_gives_entropies_a_gradient():
    hidden, targets = inputs(4)
    for asked in (False, True):
        _, entropies = Head(a_model(), 1.0, 3, EXACT, asked)(hidden, targets)
        assert entropies.requires_grad == asked


class Widths(TorchDispatchMode):
    """Rows of each (rows, vocabulary) product as it is made, and the most rows of any array that wide."""

    def __init__(self):
        super().__init__()
        self.products, self.most = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.ndim == 2 and result.shape[1] == VOCABULARY:
            self.most = max(self.most, len(result))
            if function is torch.ops.aten.mm.default:
                self.products.append(len(result))
        return result


def test_logits_exist_a_chunk_at_a_time_and_those_of_the_last_are_kept():
    hidden, targets = inputs(25)
    with Widths() as forward:
        logprobs, _ = Head(a_model(), 1.0, 10, EXACT)(hidden, targets)
    with Widths() as backward:
        logprobs.sum().backward()
    assert forward.most == backward.most == 10
    assert forward.products == [10, 10, 5]
    assert backward.products == [10, 10], "those of all but the last chunk are computed anew"


def test_a_frozen_head_gets_no_gradient():
    model = a_model()
    model.get_output_embeddings().weight.requires_grad_(False)
    hidden, targets = inputs(7)
    Head(model, 1.0, 3, EXACT)(hidden, targets)[0].sum().backward()
    assert hidden.grad is not None
    assert model.get_output_embeddings().weight.grad is None


def test_a_gradient_that_is_there_is_added_to():
    hidden, targets = inputs(7)
    given, added = a_model(bias=True), a_model(bias=True)
    before = torch.linspace(-1, 1, VOCABULARY * WIDTH, dtype=torch.float64).view(VOCABULARY, WIDTH)
    added.get_output_embeddings().weight.grad = before.clone()
    for model in (given, added):
        Head(model, 1.0, 3, EXACT)(hidden, targets)[0].sum().backward()
    wanted = before + given.get_output_embeddings().weight.grad
    torch.testing.assert_close(added.get_output_embeddings().weight.grad, wanted)


def large(n=40, vocabulary=5000, width=64):
    """A head whose logits reach 20 and more, as those of language models do, and rounded inputs of it."""
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(width, vocabulary, bias=False)
    linear.weight.data = torch.randn(vocabulary, width, generator=generator).bfloat16().float()
    text = SimpleNamespace()
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), get_output_embeddings=lambda: linear)
    hidden = torch.randn(n, width, generator=generator).bfloat16().float()
    likely = torch.multinomial(torch.softmax(linear(hidden), -1), 1, generator=generator).squeeze(1).detach()
    return model, hidden.requires_grad_(), likely


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("entropy", [False, True])
def test_narrow_products_keep_the_precision_of_logprobs(chunk: int, entropy: bool):
    """As exact inputs go in, all error is that of the logits' rounding: plainly rounded ones are off by much more."""
    model, hidden, targets = large()
    wanted, entropies = Head(model, 0.9, chunk, NarrowWeights(torch.float32), entropy)(hidden, targets)
    logits = hidden @ model.get_output_embeddings().weight.t()
    assert logits.max() > 20
    rounded = torch.log_softmax(logits.bfloat16().float() / 0.9, -1).gather(1, targets[:, None])[:, 0]
    found, found_entropies = Head(model, 0.9, chunk, NarrowWeights(torch.bfloat16), entropy)(hidden, targets)
    assert found.dtype == found_entropies.dtype == torch.float32
    error = (found - wanted).abs()
    assert (error <= 0.002 + 0.005 * wanted.abs()).all()
    assert error.mean() < (rounded - wanted).abs().mean() / 4
    assert torch.allclose(found_entropies, entropies, rtol=0.02, atol=0.02)
    leaves = [hidden, model.get_output_embeddings().weight]
    sums = [
        (p * torch.linspace(-1, 2, len(p))).sum() + h.sum() * entropy
        for p, h in ((found, found_entropies), (wanted, entropies))
    ]
    for ours, theirs in zip(*(torch.autograd.grad(total, leaves) for total in sums), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.01 * theirs.norm()


def test_what_is_certain_has_hardly_a_gradient():
    """p - 1 at the target is made of the log-prob: in bfloat16 a probability of .999 is 1."""
    model, hidden, _ = large()
    targets = (hidden @ model.get_output_embeddings().weight.t()).argmax(-1)
    for temperature in (0.5, 0.2):
        gradients = []
        for dtype in (torch.float32, torch.bfloat16):
            logprobs, _ = Head(model, temperature, 64, NarrowWeights(dtype))(hidden, targets)
            gradients.append(torch.autograd.grad(logprobs.sum(), hidden)[0])
        norms = [g.norm(dim=1) for g in gradients]
        assert norms[0].min() < 0.01 * norms[0].max()
        assert torch.allclose(norms[1], norms[0], rtol=0.05)


def test_narrow_masters_get_narrow_gradients():
    model = a_model(dtype=torch.bfloat16)
    hidden, targets = inputs(6, torch.bfloat16)
    logprobs, entropies = Head(model, 1.0, 4, NarrowWeights(torch.bfloat16))(hidden, targets)
    assert logprobs.dtype == entropies.dtype == torch.float32
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == model.get_output_embeddings().weight.grad.dtype == torch.bfloat16
