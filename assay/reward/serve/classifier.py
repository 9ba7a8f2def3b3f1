"""The reward model itself: a sequence classifier of transformers, and texts scored in one padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay.errors import UserError


@dataclass(frozen=True)
class Item:
    """One completion to be scored."""

    prompt: str
    completion: str
    messages: tuple[Mapping[str, str], ...] = ()
    """The conversation before it; absent, ``prompt`` is the user's only message."""


class TooLong(ValueError):
    """A text has more tokens than the model can read; it is never cut."""


@dataclass(frozen=True)
class Classifier:
    """A loaded reward model. Not thread-safe: one batch at a time."""

    name: str
    model: Any
    tokenizer: Any
    device: torch.device
    label: int
    """Which output is the score: 0 of a model with one, whose raw number it is; of several, its probability."""
    longest: int
    """Most tokens of a text."""

    def encode(self, item: Item) -> list[int]:
        """The tokens of prompt and completion; raises :class:`TooLong`."""
        if getattr(self.tokenizer, "chat_template", None):
            before = list(item.messages) or [{"role": "user", "content": item.prompt}]
            whole = [*before, {"role": "assistant", "content": item.completion}]
            text = self.tokenizer.apply_chat_template(whole, tokenize=False)
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        else:
            ids = self.tokenizer(item.prompt + item.completion).input_ids
        if not ids:
            raise TooLong("the text has no tokens")
        if len(ids) > self.longest:
            raise TooLong(f"{len(ids)} tokens are more than the {self.longest} that the model can read")
        return ids

    def score(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """The score of each tokenised text, padded on the right into one batch."""
        width = max(len(ids) for ids in texts)
        pad = self.model.config.pad_token_id
        rows = torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids in texts], device=self.device)
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in texts], device=self.device)
        with torch.inference_mode():
            logits = self.model(input_ids=rows, attention_mask=mask).logits.float()
        found = logits if logits.shape[-1] == 1 else torch.softmax(logits, dim=-1)
        return found[:, self.label].tolist()


def load_classifier(path: str, device: str, label: int | None) -> Classifier:
    """Load a folder, or a name on the hub.

    Raises :class:`UserError` where there is none, for a model without a tokenizer, and for several labels of which
    ``label`` chooses none.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir():
        raise UserError(f"{path}: there is no such folder; give one that save_pretrained wrote, or a name on the hub")
    try:
        place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForSequenceClassification.from_pretrained(path).to(place).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be served: {(str(error).splitlines() or ['no message'])[0]}") from None
    _check_head(path, model)
    labels = model.config.num_labels
    if labels > 1 and (label is None or not 0 <= label < labels):
        raise UserError(
            f"--label: {path} has {labels} labels; say which one's probability is the score, 0 to {labels - 1}"
        )
    if labels == 1 and label not in (None, 0):
        raise UserError(f"--label {label}: {path} has one output, which is the score")
    if model.config.pad_token_id is None:
        model.config.pad_token_id = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
    if model.config.pad_token_id is None:
        raise UserError(f"{path}: neither model nor tokenizer has a padding or end token, which batches need")
    longest = min(int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30), int(tokenizer.model_max_length))
    return Classifier(path, model, tokenizer, place, label or 0, longest)


def _check_head(path: str, model: Any) -> None:
    """A causal model's folder has no score head: transformers would draw one at random, and say so in a log line."""
    kinds = list(getattr(model.config, "architectures", None) or [])
    if kinds and not any("SequenceClassification" in kind for kind in kinds):
        raise UserError(f"{path}: is a {kinds[0]}, not a sequence classifier: its score head would be random numbers")
