"""GRPO in one file: a language model learns sums from a rule that checks its answers. Plain torch and transformers.

    python examples/grpo_in_one_file.py MODEL_FOLDER [--steps N]

A step asks the model each of a few questions several times; the answers to one question are a group. A rule gives each
answer a reward; its advantage is how far it lies above the mean of its group, in standard deviations; then every token
of a good answer is made likelier and every token of a bad one less likely. Read from `train` upwards.

Simplifications, and why:

1. The data are sums of two digits, made up on the spot, and the reward is one rule: the last integer is the answer.
   What a verifier must survive (time-outs, crashes, tricks) would hide the algorithm.
2. transformers' `generate` samples, padded and in step, until the longest answer of all ends: simple and slow.
3. A prompt is forwarded once per answer and logits exist for all tokens: sharing prompts is faster and changes nothing.
4. The anchor of the ratio is the policy itself as the step begins. With one epoch the ratio is therefore exactly 1 and
   the clip idle; it is written out because it is the algorithm, and acts with `--epochs 2`.
5. No KL, hence no reference model: a rule cannot be over-optimised as a learned reward can.
6. float32, a constant learning rate, evaluation mode throughout (dropout would make the ratio measure noise).
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
EPS, MIN_STD = 1e-6, 1e-8
ROWS = 8
"""Answers forwarded at once: decides memory, not the update."""


@dataclass(frozen=True)
class Answer:
    """One sampled answer: token ids of the prompt (P,) and of the response (T,), end-of-sequence token included."""

    prompt: Tensor
    response: Tensor


def make_sums(rng: random.Random, n: int) -> list[tuple[str, int]]:
    """Draw ``n`` questions with their answers."""
    pairs = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(n)]
    return [(f"What is {a} + {b}?", a + b) for a, b in pairs]


def reward(text: str, answer: int) -> float:
    """1 if the last integer in the text is the answer, else 0."""
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == answer)


def encode(tokenizer: Any, question: str) -> Tensor:
    """Token ids (P,) of a question, in the model's chat format if it has one."""
    if tokenizer.chat_template is None:
        return torch.tensor(tokenizer(question).input_ids)
    messages = [{"role": "user", "content": question}]
    return torch.tensor(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompts: Sequence[Tensor], group_size: int, max_tokens: int) -> list[Answer]:
    """Answer every prompt ``group_size`` times, group by group, from the model's full distribution."""
    ends = model.generation_config.eos_token_id
    ends = torch.tensor(ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends])
    width = max(len(p) for p in prompts)
    ids = torch.stack([torch.cat([p.new_zeros(width - len(p)), p]) for p in prompts])  # padded on the left
    mask = torch.stack([torch.arange(width) >= width - len(p) for p in prompts]).long()
    rows = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_tokens,
        num_return_sequences=group_size,
        pad_token_id=int(ends[0]),
    )[:, width:]
    answers = []
    for i, row in enumerate(rows):
        stops = torch.isin(row, ends).nonzero().flatten().tolist()
        length = stops[0] + 1 if stops else len(row)
        answers.append(Answer(prompts[i // group_size], row[:length]))
    return answers


def advantages(rewards: Tensor) -> Tensor:
    """(r - mean) / (std + eps) within each row of ``rewards`` (groups, group size); 0 where all rewards are equal."""
    std = rewards.std(dim=1, keepdim=True)
    return torch.where(std < MIN_STD, 0.0, (rewards - rewards.mean(dim=1, keepdim=True)) / (std + EPS))


def token_logprobs(model: Any, answers: Sequence[Answer]) -> list[Tensor]:
    """Per answer, the log-probs (T,) of its response tokens given all tokens before them."""
    rows = [torch.cat([a.prompt, a.response]) for a in answers]
    ids = pad_sequence(rows, batch_first=True)  # on the right, where no token of an answer can see it
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
    logs = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None]).squeeze(2)
    starts = [len(a.prompt) - 1 for a in answers]
    return [row[s : s + len(a.response)] for row, s, a in zip(logs, starts, answers, strict=True)]


def clipped_loss(logprobs: Tensor, anchor: Tensor, advantage: Tensor) -> Tensor:
    """-min(r A, clip(r) A) per token, r = exp(logprobs - anchor)."""
    ratio = (logprobs - anchor).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)


def backward(
    model: Any, answers: Sequence[Answer], advantage: Tensor, anchors: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Add the gradient of the step's loss, a mean over *all* its tokens; returns the log-probs, detached.

    ``advantage`` (S,), one per answer; ``anchors`` are the log-probs at the beginning of the step, absent: these. The
    loss is divided by the tokens of the whole step, never by a part's own, so that no split into parts changes it.
    """
    tokens = sum(len(a.response) for a in answers)
    found: list[Tensor] = []
    for start in range(0, len(answers), ROWS):
        part = token_logprobs(model, answers[start : start + ROWS])
        before = [p.detach() for p in part] if anchors is None else anchors[start : start + ROWS]
        given = [a.expand(len(p)) for p, a in zip(part, advantage[start : start + ROWS], strict=True)]
        loss = clipped_loss(torch.cat(part), torch.cat(list(before)), torch.cat(given)).sum() / tokens
        loss.backward()
        found += [p.detach() for p in part]
    return found


def train(
    folder: str, steps: int, questions: int = 8, group_size: int = 8, max_tokens: int = 24, epochs: int = 1,
    learning_rate: float = 1e-5, seed: int = 0,
) -> list[float]:  # fmt: skip
    """Train the model in ``folder`` and return the mean reward of every step."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    rng, history = random.Random(seed), []
    torch.manual_seed(seed)
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        sums = make_sums(rng, questions)
        answers = sample(model, tokenizer, [encode(tokenizer, q) for q, _ in sums], group_size, max_tokens)
        texts = [tokenizer.decode(a.response, skip_special_tokens=True) for a in answers]
        rewards = torch.tensor([reward(text, sums[i // group_size][1]) for i, text in enumerate(texts)])
        advantage = advantages(rewards.view(questions, group_size)).flatten()
        anchors = None
        for _ in range(epochs):
            optimizer.zero_grad()
            logprobs = backward(model, answers, advantage, anchors)
            anchors = logprobs if anchors is None else anchors
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        history.append(float(rewards.mean()))
        length = sum(len(a.response) for a in answers) / len(answers)
        seconds = time.perf_counter() - begun
        print(f"step {step:3d}  reward {history[-1]:.3f}  tokens {length:4.1f}  {seconds:5.1f} s", flush=True)
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO on sums, in one file.")
    parser.add_argument("folder", help="a Hugging Face model with its tokenizer: a folder or a hub name")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1, help="optimizer steps per batch; above 1 the clip acts")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    train(chosen.folder, chosen.steps, epochs=chosen.epochs, learning_rate=chosen.learning_rate, seed=chosen.seed)
