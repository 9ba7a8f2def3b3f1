"""One question to a chat model behind an OpenAI-compatible endpoint, and its answer read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import Field

from assay.http import Refused, Unavailable
from assay.reward.judge.fleet import Fleet
from assay.reward.judge.options import ServiceOptions
from assay.reward.judge.reading import Read, Unreadable

T = TypeVar("T")
_PATH = "/chat/completions"
_UNSUPPORTED = frozenset({400, 404, 415, 422, 501})
"""What servers say to a ``response_format`` that they do not know."""


class ChatOptions(ServiceOptions):
    """What a chat model is told, beside the question."""

    models: list[str] = Field(min_length=1)
    """Names of the models that judge, in parallel; with several their scores are combined."""
    template: str | None = None
    """Jinja template of the question, in place of the built-in one."""
    template_file: str | None = None
    """A file that holds it."""
    criteria: str = ""
    """What is judged, in words: shown by the built-in template."""
    system: str | None = None
    """A system message."""
    structured: Literal["auto", "always", "never"] = "auto"
    """Ask for JSON by a schema; `auto`: until a server refuses it."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge."""
    max_tokens: int = Field(default=512, ge=1)
    """Longest answer of the judge, its thinking included."""
    max_chars: int = Field(default=20000, ge=2)
    """A longer completion is shown to the judge by its beginning and its end."""
    repairs: int = Field(default=1, ge=0)
    """How often a judge whose words cannot be read is asked to say it again."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the request's body, such as `seed`."""


@dataclass
class Chat:
    """Asks the models of a fleet of chat servers, and has their words read."""

    fleet: Fleet
    options: ChatOptions
    _schema_refused: set[str] = field(default_factory=set)
    """Models that were seen to answer only without a schema."""

    async def ask(self, model: str, question: str, schema: Mapping[str, Any], read: Callable[[str], Read]) -> Read:
        """What ``read`` finds in the model's answer. Raises :class:`Unavailable` when that cannot be had.

        An answer that cannot be read is shown to the model once more (``repairs`` times) with what was wrong.
        """
        messages = [{"role": "system", "content": self.options.system}] if self.options.system else []
        messages.append({"role": "user", "content": question})
        wrong = ""
        for _ in range(1 + self.options.repairs):
            words = await self._say(model, messages, schema)
            try:
                return read(words)
            except Unreadable as error:
                wrong = str(error)
                again = f"That could not be read ({wrong}). Reply with the JSON object only."
                messages = [*messages, {"role": "assistant", "content": words}, {"role": "user", "content": again}]
        raise Unavailable(f"{model}: the judgement cannot be read: {wrong}")

    async def _say(self, model: str, messages: list[dict[str, Any]], schema: Mapping[str, Any]) -> str:
        """The model's words, by a schema where it takes one."""
        body = {
            "model": model,
            "messages": messages,
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
            **self.options.extra,
        }
        form = {"type": "json_schema", "json_schema": {"name": "judgement", "strict": True, "schema": schema}}
        mode = self.options.structured
        if mode == "never" or (mode == "auto" and model in self._schema_refused):
            return words_of(model, await self.fleet.ask(_PATH, body))
        try:
            return words_of(model, await self.fleet.ask(_PATH, body | {"response_format": form}))
        except Refused as error:
            if mode == "always" or error.status not in _UNSUPPORTED:
                raise
            words = words_of(model, await self.fleet.ask(_PATH, body))  # refused too: it was not for the schema
            self._schema_refused.add(model)
            return words


def words_of(model: str, reply: Any) -> str:
    """The text of a chat completion. Raises :class:`Unavailable` for JSON of another form.

    >>> words_of("m", {"choices": [{"message": {"content": "B"}}]})
    'B'
    """
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise Unavailable(f"{model}: the reply is no chat completion: {str(reply)[:120]}") from None
    return content if isinstance(content, str) else ""
