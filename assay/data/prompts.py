"""The prompts of a recipe: rows read, questions found, repeats merged, problems split, text tokenised.

Chosen here: a row that repeats another in every column is merged with it and counted (for generated tasks: in
question and answer), so no prompt is twice in an epoch by accident and a held-out score counts nothing
double. The held-out split is made before prompts that are too long are dropped: whether a problem is held out
never depends on the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.data.chat import prepare_messages, render, tokenize, uses_chat_template
from assay.data.conventions import Question, question_of
from assay.data.problems import problem_of, split_holdout
from assay.data.rows import Row
from assay.data.sources import read_rows
from assay.errors import UserError
from assay.recipe.schema import DataRecipe
from assay.records import Prompt

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one split, and what became of the rows that are not among them."""

    prompts: tuple[Prompt, ...]
    too_long: int = 0
    """Prompts skipped because they are longer than ``data.max_prompt_tokens``."""
    repeated: int = 0
    """Rows merged with an equal row; counted over the whole source, before the held-out split."""
    without_answer: int = 0
    """Prompts with no right answer in ``columns["answer"]``."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Rows read, by data spec."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def problems(self) -> int:
        """How many distinct problems there are (see ``problems``)."""
        return len({p.problem for p in self.prompts})

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(p.token_ids) for p in self.prompts)

    def describe(self) -> str:
        """One line for the console.

        >>> one = Prompt(id="a", messages=(), text="2+2?", token_ids=(5, 6), problem="2+2")
        >>> PromptSet((one,), too_long=3).describe()
        '1 prompt, 1 distinct problem, longest 2 tokens; 3 too long and skipped'
        """
        notes = [
            f"{self.too_long} too long and skipped" if self.too_long else "",
            f"{_count(self.repeated, 'repeated row')} merged" if self.repeated else "",
            f"{self.without_answer} without a right answer" if self.without_answer else "",
        ]
        parts = [
            _count(len(self), "prompt"),
            _count(self.problems, "distinct problem"),
            f"longest {self.longest} tokens",
        ]
        return "; ".join([", ".join(parts), *filter(None, notes)])


@dataclass(frozen=True)
class _Asked:
    """A question with its identities, not yet rendered."""

    id: str
    problem: str
    question: Question
    source: str


def load_prompts(
    data: DataRecipe, tokenizer: Any, split: Split = "train", gold: str = "answer", holdout_seed: int = 0
) -> PromptSet:
    """Read, check, split, render and tokenise the prompts of a recipe.

    Args:
        data: The recipe's ``data`` section. tokenizer: A Hugging Face tokenizer. split: ``train``; or
            ``eval``: the prompts of ``data.eval``, else the problems held out of ``data.train``. gold: Column
            of the right answer (``reward.gold``). holdout_seed: Of the held-out choice. It is not
            ``run.seed``: runs of several seeds, and a later evaluation of
            any of them, must hold out the same problems.

    Raises:
        UserError: nothing to read, a broken row (file and row are named), a prompt that is too long where
            ``data.overlong`` is ``refuse``, or no prompt left, with the reason.
    """
    specs = _specs(data, split)
    rows_read: dict[str, int] = {}
    asked: dict[str, _Asked] = {}
    repeated = 0
    for spec in specs:
        rows = read_rows(spec)
        rows_read[spec] = rows_read.get(spec, 0) + len(rows)
        for row in rows:
            one = _ask(row, data, gold)
            repeated += one.id in asked
            asked.setdefault(one.id, one)
    chosen = tuple(asked.values())
    if data.holdout and not data.eval:
        training, held_out = split_holdout(chosen, data.holdout, holdout_seed)
        chosen = training if split == "train" else held_out
    prompts = tuple(_fitting(chosen, data, tokenizer))
    too_long = len(chosen) - len(prompts)
    if not prompts:
        raise UserError(
            f"data.{split}: no prompt left: all {too_long} are longer than data.max_prompt_tokens="
            f"{data.max_prompt_tokens}: raise it"
        )
    unknown = sum(p.columns.get("answer") is None for p in prompts)
    return PromptSet(prompts, too_long, repeated, unknown, rows_read)


def shared_problems(one: PromptSet, other: PromptSet) -> tuple[str, ...]:
    """Problems that both sets ask, sorted: none after a held-out split; a warning for an eval file."""
    return tuple(sorted({p.problem for p in one.prompts} & {p.problem for p in other.prompts}))


def _specs(data: DataRecipe, split: Split) -> list[str]:
    if not data.train and (split == "train" or not data.eval):
        raise UserError("data.train: no data named: give files, folders, hub:NAME or reasoning_gym:NAME{...}")
    if data.eval and data.holdout:
        raise UserError("data.eval and data.holdout are both set: evaluation prompts come from one of them")
    if split == "train":
        return list(data.train)
    if not data.eval and not data.holdout:
        raise UserError("no held-out prompts: set data.holdout to a number of problems, or name data.eval")
    return list(data.eval or data.train)


def _ask(row: Row, data: DataRecipe, gold: str) -> _Asked:
    question = question_of(row, convention=data.format, prompt=data.prompt, gold=gold)
    return _Asked(_identity(row, question), problem_of(question.messages, row.columns), question, row.source)


def _identity(row: Row, question: Question) -> str:
    """A hash of what the row says, not of where it stands (a generated row's metadata has its number)."""
    columns = row.columns
    if row.kind.startswith("reasoning_gym:"):
        columns = {"answer": columns.get("answer")}
    said = [row.kind, [dict(m) for m in question.messages], dict(columns)]
    canonical = json.dumps(said, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _fitting(asked: Iterable[_Asked], data: DataRecipe, tokenizer: Any) -> Iterable[Prompt]:
    """The prompts that are not too long: a prompt is never cut."""
    chat = uses_chat_template(tokenizer, data)
    for one in asked:
        messages = prepare_messages(one.question.messages, data)
        text = render(messages, tokenizer, data, one.source)
        ids = tokenize(text, tokenizer, chat=chat)
        if len(ids) <= data.max_prompt_tokens:
            yield Prompt(one.id, messages, text, ids, one.question.columns, one.source, one.problem)
        elif data.overlong == "refuse":
            raise UserError(
                f"{one.source}: the prompt has {len(ids)} tokens, more than data.max_prompt_tokens="
                f"{data.max_prompt_tokens}: raise it, or set data.overlong=skip"
            )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
