"""The trunk over tokens alone gives what the padded rows give: log-probs, gradients, and nothing to padding."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from policy_helpers import batch_of, begun_alike, make_groups
from tiny import FAMILIES, tiny_model
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention

from assay.policy.compiled import CompiledForest
from assay.policy.logprobs import Ragged, Scorer, make_scorer
from assay.policy.packing import MicroBatch, microbatches
from assay.policy.ragged import Rows
from assay.rollout.stem import STEM


def scorer_of(model: Any) -> Scorer:
    return make_scorer(model, temperature=0.8, chunk=16, compute_dtype="float32", device=torch.device("cpu"))


def uneven(stem: int = 0, groups: int = 4) -> MicroBatch:
    made = make_groups(sizes=(1, 5, 2, 3)[:groups], longest=17)
    batch = batch_of(begun_alike(made, range(5, 5 + stem)))
    (micro,) = microbatches(batch, range(batch.n_sequences), 4096, True)
    assert micro.n_tokens < micro.n_padded or groups == 1
    return micro


def gradients(scorer: Scorer, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logprobs, _ = scorer.logprobs(micro)
    (logprobs * torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)).sum().backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("stem", [0, 20])
@pytest.mark.parametrize("way", ["trees", "rows"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_and_gradients_equal_those_of_padded_rows(family: str, way: Ragged, stem: int) -> None:
    model = tiny_model(family).double()
    scorer = scorer_of(model)
    assert scorer.ragged == "trees"
    micro = uneven(stem)
    found, mine = gradients(replace(scorer, ragged=way), model, micro)
    model.set_attn_implementation("sdpa")
    wanted, theirs = gradients(replace(scorer, ragged="no"), model, micro)
    # norms compute in float32 whatever the weights are: Gemma's results, of others gradients that are added up first
    exact = 1e-5 if family.startswith("gemma") or (stem and family != "gpt2") else 1e-9
    torch.testing.assert_close(found, wanted, rtol=0, atol=exact)
    assert mine.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=exact, atol=exact)


@pytest.mark.parametrize("stem", [0, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_loops_give_what_torchs_kernel_gives(family: str, stem: int) -> None:
    """In float32, attention that turns queries and keys by itself included, where nothing but that is beside it."""
    model, micro = tiny_model(family), uneven(stem)
    scorer = scorer_of(model)
    assert scorer.ragged == "compiled"
    forwards = [vars(module).get("forward") for module in model.modules()]
    fused = [forward for forward in forwards if getattr(forward, "__module__", None) == "assay.policy.compiled"]
    assert len(fused) == (2 if family in ("llama", "qwen2", "mistral", "gemma2") else 0)
    found, mine = gradients(scorer, model, micro)
    wanted, theirs = gradients(replace(scorer, ragged="trees"), model, micro)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert mine.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_that_positions_do_not_turn_keep_their_forward(layer: int) -> None:
    """Layers of one class may differ in it (SmolLM3); each is probed."""
    model = tiny_model()
    own = model.model.layers[layer].self_attn
    unturned = type("Unturned", (type(own),), {"forward": _unturned})
    own.__class__ = unturned
    scorer = scorer_of(model)
    assert scorer.ragged == "compiled"
    fused = ["forward" in vars(one.self_attn) for one in model.model.layers]
    assert fused == [index != layer for index in range(2)]
    micro = uneven()
    found, mine = gradients(scorer, model, micro)
    wanted, theirs = gradients(replace(scorer, ragged="trees"), model, micro)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def _unturned(self: Any, hidden_states: Tensor, position_embeddings: Any = None, **more: Any) -> Any:
    cosine, sine = (torch.full_like(part, value) for part, value in zip(position_embeddings, (1, 0), strict=True))
    return LlamaAttention.forward(self, hidden_states, position_embeddings=(cosine, sine), **more)


def test_heads_that_are_turned_in_part_keep_their_forward() -> None:
    """Positions narrower than heads are left to the module (Nemotron)."""
    model = tiny_model()
    attention = model.model.layers[0].self_attn
    scorer_of(model)
    assert "forward" in vars(attention)
    micro = uneven()
    places = CompiledForest.of(micro)
    hidden = torch.randn(1, len(places.order), 64)
    narrow = (torch.ones(1, len(places.order), 1), torch.zeros(1, len(places.order), 1))
    own, _ = type(attention).forward(attention, hidden, position_embeddings=narrow, attention_mask=None, places=places)
    found, _ = attention(hidden, position_embeddings=narrow, attention_mask=None, places=places)
    assert torch.equal(found, own)


def test_kernels_can_be_turned_off() -> None:
    model = tiny_model()
    settings = {"temperature": 1.0, "chunk": 16, "compute_dtype": "float32", "device": torch.device("cpu")}
    assert make_scorer(model, **settings).ragged == "compiled"
    assert make_scorer(model, **settings, kernels=False).ragged == "trees"
    assert all("forward" not in vars(layer.self_attn) for layer in model.model.layers)


def test_what_prompts_begin_with_is_forwarded_once() -> None:
    scorer = scorer_of(tiny_model())
    micro = uneven(20)
    assert micro.stem == 20
    assert micro.repeated == 60
    seen = []
    hook = scorer.trunk.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape[1]))
    scorer.logprobs(micro)
    scorer.logprobs(replace(micro))
    replace(scorer, ragged="rows").logprobs(micro)
    hook.remove()
    assert seen == [micro.n_tokens - 60] * 2 + [micro.n_tokens]
    assert scorer.n_forwarded(micro) == seen[0]
    assert replace(scorer, ragged="rows").n_forwarded(micro) == seen[2]


def test_a_beginning_ends_before_the_last_token_of_a_prompt_and_is_not_too_short() -> None:
    """What predicts a first token is the prompt's own; the trees of a large group have the same prompt."""
    groups = make_groups(sizes=(6,), longest=9)
    whole = begun_alike(groups, range(30))
    batch = batch_of(whole)
    (micro,) = microbatches(batch, range(batch.n_sequences), 4096, False)
    assert micro.stem == 0
    assert replace(micro, shared=True).stem == len(whole[0].prompt.token_ids) - 1
    assert uneven(STEM - 1).stem == 0
    assert uneven(STEM).stem == STEM
    assert uneven(STEM, groups=1).stem == 0


def test_what_lies_at_padding_reaches_nothing() -> None:
    """With huge values at the first token, which padding repeats, the others' results stay as they were."""
    micro = uneven()
    rows = Rows(micro.places(), *micro.input_ids.shape)
    flat = torch.randn(1, 3, micro.n_tokens, 4, dtype=torch.float64, requires_grad=True)
    back = rows.gather(rows.spread(flat).transpose(1, 2))
    assert torch.equal(back, flat.transpose(1, 2))
    weights = torch.randn_like(back)
    (back * weights).sum().backward()
    assert flat.grad is not None
    assert torch.equal(flat.grad, weights.transpose(1, 2))
    assert len(rows.tokens) == micro.n_padded > micro.n_tokens == len(rows.order)


def test_attention_of_another_kind_keeps_padded_rows() -> None:
    model = tiny_model()
    model.set_attn_implementation("eager")
    assert scorer_of(model).ragged == "no"
    assert model.config._attn_implementation == "eager"


def test_a_model_that_passes_nothing_on_to_its_attention_keeps_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        monkeypatch.setattr(layer.self_attn, "forward", lambda *a, places=None, forward=forward, **k: forward(*a, **k))
    scorer = scorer_of(model)
    assert scorer.ragged == "no"
    assert model.config._attn_implementation == "sdpa"


def test_a_saved_config_does_not_name_our_attention(tmp_path) -> None:
    model = tiny_model()
    scorer_of(model)
    model.save_pretrained(tmp_path)
    assert "assay" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
