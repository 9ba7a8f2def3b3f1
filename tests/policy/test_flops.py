"""The arithmetic that is counted is the arithmetic that is done: against torch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from policy_helpers import make_groups, make_recipe
from tiny import FAMILIES, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from assay.policy.batch import pack
from assay.policy.flops import Work, costs_of, decode_flops, forward_flops, update_flops, work_of
from assay.policy.model import add_lora
from assay.policy.packing import MicroBatch, microbatches
from assay.recipe.schema import LoraRecipe
from assay.rollout.engine import Stats
from assay.rollout.masks import LayerMasks


def eager(family: str, **fields: Any) -> Any:
    """A tiny model whose attention is plain products, which the counter sees: all of them, masked or not."""
    model = tiny_model(family, **fields)
    model.set_attn_implementation("eager")
    return model


def counted(run: Callable[[], Any]) -> int:
    """FLOP of the matrix products that happen in ``run``, but for the angles of the rotary embedding."""
    with FlopCounterMode(display=False) as counter:
        run()
    modules = counter.get_flop_counts().items()
    return counter.get_total_flops() - sum(sum(n.values()) for name, n in modules if name.endswith("rotary_emb"))


def packed(share_prompts: bool) -> list[MicroBatch]:
    batch = pack(make_groups(sizes=(4, 3, 2)), make_recipe().reward)
    return microbatches(batch, range(batch.n_sequences), 64, share_prompts)


def scores(model: Any, micro: MicroBatch) -> torch.Tensor:
    """Logits of the scored tokens of a micro-batch."""
    masks = LayerMasks.of(model.config.get_text_config())
    hidden = model.base_model(
        input_ids=micro.input_ids,
        attention_mask=masks.build(micro.positions, micro.positions, torch.float32, micro.related()),
        position_ids=micro.positions.clamp(min=0),
        use_cache=False,
    ).last_hidden_state
    return model.get_output_embeddings()(hidden.flatten(0, 1)[micro.predicts])


def dense(micro: MicroBatch) -> Work:
    """What plain products work on: padding too, and each token with the whole row."""
    rows, length = micro.input_ids.shape
    return Work(rows * length, len(micro.targets), rows * length * length)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share_prompts", [True, False])
def test_products_of_an_update(family: str, share_prompts: bool) -> None:
    model = eager(family)
    costs = costs_of(model)
    for micro in packed(share_prompts):
        with torch.no_grad():
            assert counted(lambda micro=micro: scores(model, micro)) == forward_flops(costs, dense(micro))
        both = counted(lambda micro=micro: scores(model, micro).logsumexp(-1).sum().backward())
        assert both == update_flops(costs, dense(micro)) == 3 * forward_flops(costs, dense(micro))
        assert update_flops(costs, Work(), dense(micro)) == forward_flops(costs, dense(micro))


@pytest.mark.parametrize("share_prompts", [True, False])
def test_work_is_what_the_mask_lets_through(share_prompts: bool) -> None:
    for micro in packed(share_prompts):
        causal = micro.positions[:, None, :] <= micro.positions[:, :, None]
        pairs = int((micro.related() & causal & (micro.positions >= 0)[:, :, None]).sum())
        assert work_of([micro]) == Work(int((micro.positions >= 0).sum()), len(micro.targets), pairs)
    shared, apart = work_of(packed(True)), work_of(packed(False))
    assert shared.scored == apart.scored
    assert shared.tokens < apart.tokens
    assert work_of(packed(True) * 2) == shared + shared == shared * 2


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_products_of_generation(family: str) -> None:
    """Two prompts of 6 tokens, then three tokens each."""
    model = eager(family)
    ids = torch.arange(12).reshape(2, 6) + 4

    def generate() -> None:
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        for _ in range(3):
            past = output.past_key_values
            output = model(input_ids=output.logits.argmax(-1), past_key_values=past, use_cache=True)

    costs = costs_of(model)
    with torch.no_grad():
        found = counted(generate)
    among_prompts = costs.attention * 2 * 6 * 6
    did = Stats(decode_rows=6, attended=2 * (7 + 8 + 9) + 5, attended_padding=5, prefill_tokens=12, prefilled=2)
    assert found == among_prompts + decode_flops(costs, did)


def test_adapters_save_the_weight_gradients_of_the_base() -> None:
    """Exact but for the first layer: nothing below it wants a gradient, so its base passes none on."""
    rank, length = 4, 9
    model = add_lora(tiny_model("llama", num_hidden_layers=4), LoraRecipe(rank=rank), seed=0)
    model.set_attn_implementation("eager")
    plain, costs = costs_of(tiny_model("llama", num_hidden_layers=4)), costs_of(model)
    hidden, inner, kv = 64, 128, 32
    sides = [hidden + hidden, hidden + kv, hidden + kv, hidden + hidden] + [hidden + inner] * 3
    assert costs.trunk_trained == costs.trunk - plain.trunk == 4 * rank * sum(sides)
    assert (costs.head, costs.head_trained) == (plain.head, 0)
    ids = torch.randint(4, 60, (2, length))
    work = Work(2 * length, 2 * length, 2 * length**2)
    found = counted(lambda: model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward())
    first = 2 * 2 * length * (hidden * hidden + 2 * hidden * kv + 3 * rank * hidden)  # q, k, v and their adapters' A
    assert found == update_flops(costs, work) - first
    assert found < 2.2 * forward_flops(costs, work)


def test_a_token_passes_the_experts_that_are_chosen() -> None:
    make: Any = transformers.Qwen3MoeConfig
    config = make(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24,
        decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    costs = costs_of(transformers.Qwen3MoeForCausalLM(config))
    attention, router, expert = 16 * (16 + 8 + 8 + 16), 8 * 16, 3 * 16 * 24
    assert costs.trunk == costs.trunk_trained == 3 * (attention + router + 2 * expert)
    assert costs.head == costs.head_trained == 50 * 16
