"""The weights' way to vLLM, as far as it needs none: which tensors, in which files, kept for how long."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_model

from assay.errors import UserError
from assay.policy.model import add_lora
from assay.recipe.schema import LoraRecipe, Recipe
from assay.rollout.vllm.arguments import DECIDED, cache_bytes, context_of, start_of
from assay.rollout.vllm.parcel import parcels, verified
from assay.rollout.vllm.placement import devices_of, transfer_kind
from assay.rollout.vllm.transfer import PREFIX, Shelf, sent_weights


def test_tied_weights_are_sent_once_and_untied_ones_twice():
    tied, untied = tiny_model("llama"), tiny_model("llama", tie_word_embeddings=False)
    assert "lm_head.weight" not in dict(sent_weights(tied))
    assert "lm_head.weight" in dict(sent_weights(untied))


def test_adapters_are_merged_into_what_is_sent():
    model = add_lora(tiny_model("llama"), LoraRecipe(rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    sent = dict(sent_weights(model))
    merged = model.merge_and_unload().state_dict()
    assert set(sent) == set(merged) - {"lm_head.weight"}
    assert all(torch.allclose(sent[name], merged[name], atol=1e-6) for name in sent)


def test_parcels_hold_every_tensor_once_in_order_and_within_the_limit(tmp_path):
    weights = [(f"w{i}", torch.randn(10, 10)) for i in range(7)]
    made = parcels(weights, tmp_path / "v", torch.bfloat16, checksums=True, limit=450)
    assert [name for p in made for name in p.names] == [name for name, _ in weights]
    assert [len(p.names) for p in made] == [2, 2, 2, 1]
    found = {k: v for p in made for k, v in load_file(verified(p)).items()}
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in weights)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_parcel_that_is_not_what_was_written_is_refused(tmp_path, damage):
    (parcel,) = parcels([("w", torch.randn(10))], tmp_path / "v", torch.float32, checksums=True)
    path = Path(parcel.path)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=path.name):
        verified(parcel)


def test_nothing_is_left_of_a_writing_that_fails(tmp_path):
    def broken():
        yield "w", torch.randn(10)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        parcels(broken(), tmp_path / "v", torch.float32, checksums=False, limit=1)
    assert list(tmp_path.iterdir()) == []


def test_the_shelf_writes_a_version_once_and_keeps_it_for_who_comes_later(tmp_path):
    model = tiny_model("llama")
    shelf = Shelf(model, torch.float32, "file", tmp_path)

    async def scenario(shelf: Shelf):
        first, second = await asyncio.gather(shelf.parcels(1, 0), shelf.parcels(1, 0))
        before = load_file(first[1][0].path)
        with torch.no_grad():
            model.model.norm.weight.add_(1.0)  # the trainer goes on
        late = await shelf.parcels(1, 0)
        kept = load_file(late[1][0].path)
        anew = await shelf.parcels(1, first[0])  # who had it already asks for the weights as they are
        return first, second, before, kept, load_file(anew[1][0].path)

    first, second, before, kept, anew = asyncio.run(scenario(shelf))
    assert first == second
    assert torch.equal(before["model.norm.weight"], kept["model.norm.weight"])
    assert not torch.equal(before["model.norm.weight"], anew["model.norm.weight"])
    del shelf
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / f"{PREFIX}{int(gone.stdout)}-abc").mkdir()
    shelf = Shelf(tiny_model("llama"), torch.float32, "file", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    del shelf


@pytest.mark.parametrize(
    ("wanted", "device", "shares", "width", "kind"),
    [
        ("auto", "cpu", True, 1, "shared_memory"),
        ("auto", "cuda:0", True, 1, "ipc"),
        ("auto", "cuda:0", True, 2, "shared_memory"),
        ("auto", "cuda:0", False, 2, "nccl"),
        ("file", "cuda:0", False, 1, "file"),
    ],
)
def test_the_way_that_fits_the_devices(wanted, device, shares, width, kind):
    assert transfer_kind(wanted, device, shares_device=shares, width=width) == kind


@pytest.mark.parametrize(
    ("wanted", "device", "shares", "width"),
    [("nccl", "cpu", False, 1), ("ipc", "cuda:0", False, 1), ("ipc", "cuda:0", True, 2), ("nccl", "cuda:0", True, 1)],
)
def test_a_way_that_cannot_work_is_refused(wanted, device, shares, width):
    with pytest.raises(UserError, match=r"sync\.backend"):
        transfer_kind(wanted, device, shares_device=shares, width=width)


def test_more_servers_than_devices_are_refused():
    assert devices_of(2, 2, 7) == (5, 6)
    with pytest.raises(UserError, match="replicas"):
        devices_of(2, 2, 6)


def recipe(**rollout) -> Recipe:
    return Recipe.model_validate({"rollout": {"dtype": "float32", "max_tokens": 20, "max_running": 4, **rollout}})


@pytest.mark.parametrize("name", [*DECIDED, "max-num-seqs"])
def test_options_that_the_recipe_decides_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"rollout\.options"):
        start_of(recipe(options={name: 1}), tiny_model(), tmp_path, "cpu", "shared_memory", shares_device=True)


def test_options_are_laid_over_what_the_recipe_gives(tmp_path):
    options = {"quantization": "fp8", "block-size": 64, "environment": {"A": 1}, "python": "/x/python"}
    start = start_of(recipe(options=options), tiny_model(), tmp_path, "cpu", "shared_memory", shares_device=True)
    assert (start.arguments["quantization"], start.arguments["block_size"]) == ("fp8", 64)
    assert (start.environment["A"], start.python) == ("1", "/x/python")
    assert "environment" not in start.arguments


@pytest.mark.parametrize(("cores", "device", "one"), [(2, "cpu", True), (64, "cpu", False), (2, "cuda:0", False)])
def test_vllm_on_few_cores_is_one_process(tmp_path, monkeypatch, cores, device, one):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    start = start_of(recipe(), tiny_model(), tmp_path, device, "shared_memory", shares_device=True)
    assert (start.environment.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0") == one


def test_the_context_is_what_is_needed_and_the_cache_holds_what_runs():
    model = tiny_model("llama")
    assert context_of(recipe(), model) == 256  # the model's, below 1024 + 20
    assert context_of(recipe(options={"max_model_len": 99}), model) == 99
    one_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, their size, float32
    assert cache_bytes(recipe(max_running=1000), model) == one_token * 256 * 1008
