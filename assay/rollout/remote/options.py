"""What the engine ``openai`` can be told in ``rollout.options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from assay.errors import UserError, nearest
from assay.recipe.schema import Section


class ServerOptions(Section):
    """How the servers of ``rollout.servers`` are asked."""

    kind: Literal["auto", "vllm", "llama"] = "auto"
    """What they are; ``auto``: as ``/v1/models`` says."""
    model: str | None = None
    """The name that they serve the model under; absent: the first of ``/v1/models``."""
    key_env: str | None = None
    """Name of the environment variable that holds the key; absent: no key is sent."""
    logprobs: Literal["raw", "processed"] = "raw"
    """vLLM's ``--logprobs-mode``: of the plain logits, or of the distribution that is sampled from."""


def server_options(told: Mapping[str, Any]) -> ServerOptions:
    """The options as read. Raises UserError that names the key."""
    try:
        return ServerOptions.model_validate(dict(told))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = str(fault["loc"][0])
        known = ServerOptions.model_fields
        said = fault["msg"] if key in known else f"is none of {', '.join(known)}{nearest(key, known)}"
        raise UserError(f"rollout.options.{key}: {said}") from None
