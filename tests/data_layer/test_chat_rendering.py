"""What the model reads: templates with and without system message and thinking, and never two BOS tokens."""

from __future__ import annotations

from typing import Any

import pytest
from data_helpers import BOS_TEMPLATE, TEMPLATE, THINKING_TEMPLATE, character_tokenizer

from assay.data.chat import prepare_messages, render, tokenize, uses_chat_template
from assay.errors import UserError
from assay.recipe.schema import DataRecipe
from assay.records import Message

ASK: tuple[Message, ...] = ({"role": "user", "content": "2+2?"},)


def shown(messages: tuple[Message, ...], tokenizer: Any, **options: Any) -> str:
    data = DataRecipe(**options)
    return render(prepare_messages(messages, data), tokenizer, data, "data.jsonl:3")


def test_chat_template_with_and_without_a_system_message() -> None:
    tokenizer = character_tokenizer(TEMPLATE)
    assert shown(ASK, tokenizer) == "[user]2+2?\n[assistant]"
    assert shown(ASK, tokenizer, system="Be brief.") == "[system]Be brief.\n[user]2+2?\n[assistant]"
    assert shown(ASK, tokenizer, system="") == "[system]\n[user]2+2?\n[assistant]"
    own = ({"role": "system", "content": "Mine."}, *ASK)
    assert shown(own, tokenizer, system="Be brief.") == "[system]Mine.\n[user]2+2?\n[assistant]"


def test_the_suffix_goes_to_the_last_user_message() -> None:
    talk = (*ASK, {"role": "assistant", "content": "4"}, {"role": "user", "content": "3+3?"})
    text = shown(talk, character_tokenizer(TEMPLATE), suffix=" Number only.")
    assert text == "[user]2+2?\n[assistant]4\n[user]3+3? Number only.\n[assistant]"
    assert talk[-1]["content"] == "3+3?", "the row itself is not touched"


def test_thinking_is_passed_only_where_it_is_set_and_known() -> None:
    tokenizer = character_tokenizer(THINKING_TEMPLATE)
    assert shown(ASK, tokenizer).endswith("[assistant]")
    assert shown(ASK, tokenizer, enable_thinking=True).endswith("[assistant]")
    assert shown(ASK, tokenizer, enable_thinking=False).endswith("[assistant]<think></think>")
    for other in (character_tokenizer(TEMPLATE), character_tokenizer()):
        with pytest.raises(UserError, match="enable_thinking"):
            shown(ASK, other, enable_thinking=False)


def test_which_tokenizers_use_a_template() -> None:
    with_template, without = character_tokenizer(TEMPLATE), character_tokenizer()
    assert uses_chat_template(with_template, DataRecipe())
    assert not uses_chat_template(with_template, DataRecipe(template="none"))
    assert not uses_chat_template(without, DataRecipe())
    with pytest.raises(UserError, match=r"model\.chat_template"):
        uses_chat_template(without, DataRecipe(template="chat"))


def test_plain_text_is_shown_as_it_is() -> None:
    assert shown(ASK, character_tokenizer(TEMPLATE), template="none") == "2+2?"
    assert shown(ASK, character_tokenizer(), system="Sums.", suffix=" =") == "Sums.\n\n2+2? ="


def test_a_template_that_refuses_names_the_row() -> None:
    talk = (*ASK, {"role": "system", "content": "late"}, *ASK)
    with pytest.raises(UserError, match=r"data\.jsonl:3: .*system must be first"):
        shown(talk, character_tokenizer(TEMPLATE))


@pytest.mark.parametrize("adds_eos", [False, True])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("template", [TEMPLATE, BOS_TEMPLATE])
def test_chat_tokens_are_the_templates_alone(template: str, adds_bos: bool, adds_eos: bool) -> None:
    tokenizer = character_tokenizer(template, adds_bos=adds_bos, adds_eos=adds_eos)
    text = shown(ASK, tokenizer)
    ids = tokenize(text, tokenizer, chat=True)
    assert ids.count(tokenizer.bos_token_id) == (template == BOS_TEMPLATE)
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("adds_eos", [False, True])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("text", ["2+2?", "<s>2+2?"])
def test_plain_tokens_have_one_bos_and_no_eos(text: str, adds_bos: bool, adds_eos: bool) -> None:
    tokenizer = character_tokenizer(adds_bos=adds_bos, adds_eos=adds_eos)
    ids = tokenize(text, tokenizer, chat=False)
    assert ids.count(tokenizer.bos_token_id) == (adds_bos or text.startswith("<s>"))
    assert ids[-4:] == tuple(tokenizer.convert_tokens_to_ids(list("2+2?")))
    assert len(ids) in (4, 5)
