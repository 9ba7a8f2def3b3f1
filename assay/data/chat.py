"""From messages to what the model reads: system message, suffix, chat template, and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.errors import UserError
from assay.recipe.schema import DataRecipe
from assay.records import Message


def prepare_messages(messages: Sequence[Message], data: DataRecipe) -> tuple[Message, ...]:
    """Add ``data.system`` where there is no system message, and ``data.suffix`` to the last user message.

    >>> recipe = DataRecipe(system="Be brief.", suffix=" Answer:")
    >>> prepare_messages([{"role": "user", "content": "2+2?"}], recipe)
    ({'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': '2+2? Answer:'})
    """
    prepared = list(messages)
    if data.suffix:
        last = max(i for i, m in enumerate(prepared) if m["role"] == "user")
        prepared[last] = {**prepared[last], "content": prepared[last]["content"] + data.suffix}
    if data.system is not None and prepared[0]["role"] != "system":
        prepared.insert(0, {"role": "system", "content": data.system})
    return tuple(prepared)


def uses_chat_template(tokenizer: Any, data: DataRecipe) -> bool:
    """Whether prompts go through the chat template; refuses settings that the tokenizer cannot follow.

    Raises:
        UserError: ``template: chat`` without a template, or ``enable_thinking`` with a template that does not
            know it.
    """
    template = getattr(tokenizer, "chat_template", None)
    if data.template == "chat" and not template:
        raise UserError(
            "data.template is 'chat', but the tokenizer has no chat template: give one with "
            "model.chat_template, or set data.template=none"
        )
    chat = bool(template) and data.template != "none"
    if data.enable_thinking is not None and not (chat and "enable_thinking" in str(template)):
        raise UserError(
            "data.enable_thinking is set, but no chat template that knows it is in use: leave it out, or "
            "give a template with model.chat_template"
        )
    return chat


def render(messages: Sequence[Message], tokenizer: Any, data: DataRecipe, source: str = "") -> str:
    """The text that the model is shown, ready for its answer.

    Through the chat template, with the opening of the assistant's turn; or, without a template, the contents
    of the messages with an empty line between them: a text prompt is shown exactly as it is.

    Raises:
        UserError: the template refuses the conversation (some allow no system message); names ``source``.
    """
    if not uses_chat_template(tokenizer, data):
        return "\n\n".join(m["content"] for m in messages if m["content"])
    from jinja2 import TemplateError

    known = {} if data.enable_thinking is None else {"enable_thinking": data.enable_thinking}
    try:
        return tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, add_generation_prompt=True, **known
        )
    except (TemplateError, ValueError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{source}: the chat template refuses this conversation ({reason}): mend the row, drop "
            "data.system, or give another template with model.chat_template"
        ) from error


def tokenize(text: str, tokenizer: Any, *, chat: bool) -> tuple[int, ...]:
    """Token ids of a rendered prompt.

    A chat template writes its own special tokens, so none are added. Plain text gets the ones that the
    tokenizer puts *before* a text, once, and never the one it puts after it: an end token would end the
    answer before it began.
    """
    bare = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if chat:
        return bare
    full = tuple(tokenizer(text)["input_ids"])
    starts = (i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare)
    before = full[: next(starts, 0)]
    return bare if bare[: len(before)] == before else before + bare
