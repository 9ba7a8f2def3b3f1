"""What staleness costs: a small model learns to reverse digits while its answers come from ever older weights.

python benchmarks/staleness.py --save              # 42 runs; what is in the results already is not run again
python benchmarks/staleness.py --save --rate 1e-4  # the same at a lower learning rate
python benchmarks/staleness.py --page              # docs/staleness.md from the results

A transformer of 2 layers is trained from scratch: on given answers until it reverses one word of four digits in six,
then by reinforcement with the reward of exact answers and of right positions. All runs of a seed begin with the same
weights. Runs are in deterministic mode: a step is trained on answers that are exactly so many versions old as the
regime says (fewer in the first steps), whatever the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import staleness_page
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assay.loop.trainer import train
from assay.recipe.schema import Recipe
from assay.track.console import make_console
from assay.track.metrics import read_metrics

DIGITS = "01234567"
LENGTH = 4
START = 0.16
"""Share of right answers at which the supervised part ends."""
STALENESS: tuple[int | None, ...] = (0, 1, 2, 4, 8, 16, None)
CORRECTIONS: dict[str, dict[str, Any]] = {"none": {}, "truncate": {"kind": "truncate", "high": 2.0}}
REWARD = """
def exact(completions, answer, **columns):
    return [float(c == a) for c, a in zip(completions, answer)]


def positions(completions, answer, **columns):
    return [share(c, a) - 0.1 * abs(len(c) - len(a)) for c, a in zip(completions, answer)]


def share(completion, answer):
    return sum(x == y for x, y in zip(completion, answer)) / len(answer)
"""


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each digit, for the mark behind the word, and for the end."""
    vocabulary = {token: i for i, token in enumerate(("<pad>", "<eos>", *DIGITS, ">"))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def words() -> list[str]:
    """All words, shuffled once for all runs."""
    found = ["".join(w) for w in itertools.product(DIGITS, repeat=LENGTH)]
    random.Random(0).shuffle(found)
    return found


def begin(place: Path, seed: int) -> None:
    """Write the model that all runs of a seed begin with, the words, and the reward."""
    place.mkdir(parents=True)
    tokens, rng = tokenizer(), random.Random(seed)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    held_out = set(words()[:512])
    given = [w for w in words() if w not in held_out]
    ids = {w: torch.tensor([*tokens(f"{w}>{w[::-1]}").input_ids, 1]) for w in given}
    while True:
        batch = torch.stack([ids[w] for w in rng.choices(given, k=64)])
        logs = torch.log_softmax(model(batch).logits[:, LENGTH:-1], -1)
        found = logs.gather(-1, batch[:, LENGTH + 1 :, None]).squeeze(-1)
        if float(found.detach().sum(1).exp().mean()) > START:
            break
        optimizer.zero_grad()
        (-found.mean()).backward()
        optimizer.step()
    model.save_pretrained(place / "model")
    tokens.save_pretrained(place / "model")
    for name, chosen in (("eval", words()[:512]), ("train", given)):
        rows = (json.dumps({"prompt": f"{w}>", "answer": w[::-1]}) for w in chosen)
        (place / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (place / "reward.py").write_text(REWARD, encoding="utf-8")


def recipe_of(place: Path, staleness: int | None, correction: str, seed: int, steps: int, rate: float) -> Recipe:
    """One run. Without a bound every answer comes from the first weights."""
    groups = 16
    unbounded = {"max_groups": groups * steps} if staleness is None else {}
    return Recipe.from_dict(
        {
            "model": {"path": str(place / "model"), "compute_dtype": "float32"},
            "data": {"train": [str(place / "train.jsonl")], "eval": [str(place / "eval.jsonl")], "template": "none"},
            "rollout": {"prompts_per_step": groups, "group_size": 8, "max_tokens": LENGTH + 1},
            "reward": {"parts": [{"verifier": f"{place}/reward.py:{name}"} for name in ("exact", "positions")]},
            "objective": {"correction": CORRECTIONS[correction]},
            "update": {"learning_rate": rate},
            "regime": {"max_staleness": staleness, **unbounded},
            "drift": {"ess": 1e-6} if staleness is None else {},
            "eval": {"samples": 0, "before": False},
            "checkpoint": {"every": 0},
            "track": {"rollouts": False, "samples_every": 0},
            "run": {"steps": steps, "seed": seed, "deterministic": True, "folder": str(place / "runs")},
        }
    )


def figures(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    rows = read_metrics(folder / "metrics.jsonl")
    late = rows[len(rows) // 2 :]
    means = {
        name: fmean(r[f"update/{name}"] for r in late if f"update/{name}" in r)
        for name in ("ess_sequence", "ess_token")
    }
    return {
        "accuracy": summary["after"]["greedy"]["value"],
        "sampled": fmean(r["reward/correct"] for r in rows[-20:]),
        "by_step": [round(r.get("reward/correct", 0.0), 3) for r in rows],
        "kl": fmean(r["mismatch/kl"] for r in late if "mismatch/kl" in r),
        "entropy": fmean(r["update/entropy"] for r in late if "update/entropy" in r),
        **means,
    }


def planned(seeds: int, rate: float) -> Iterator[tuple[str, int | None, str, int]]:
    """(name, staleness, correction, seed) of all runs; at staleness 0 there is nothing to correct.

    ``start`` is one step at no learning rate to speak of: what the runs of a seed begin with.
    """
    for seed in range(seeds):
        yield f"start/0/none/{seed}", 0, "none", seed
        for staleness in STALENESS:
            for correction in CORRECTIONS if staleness != 0 else ("none",):
                age = "inf" if staleness is None else staleness
                yield f"{rate:g}/{age}/{correction}/{seed}", staleness, correction, seed


def main() -> None:
    """Do the runs that are not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--only", default="", help="only runs whose name (rate/staleness/correction/seed) holds this")
    parser.add_argument("--save", action="store_true", help="merge into benchmarks/results/staleness.json")
    parser.add_argument("--page", action="store_true", help="write docs/staleness.md from the results, run nothing")
    chosen = parser.parse_args()
    if chosen.page:
        staleness_page.write()
        return
    settings = {"steps": chosen.steps, "groups": 16, "group_size": 8}
    with tempfile.TemporaryDirectory() as folder:
        for name, staleness, correction, seed in planned(chosen.seeds, chosen.rate):
            if chosen.only not in name or (chosen.save and staleness_page.has(name)):
                continue
            place = Path(folder) / str(seed)
            if not place.exists():
                begin(place, seed)
            start = time.perf_counter()
            steps, rate = (1, 1e-12) if name.startswith("start") else (chosen.steps, chosen.rate)
            recipe = recipe_of(place, staleness, correction, seed, steps, rate)
            outcome = train(recipe, console=make_console("silent"))
            found = figures(outcome.folder, outcome.summary)
            seconds = time.perf_counter() - start
            shown = {k: round(v, 3) for k, v in found.items() if k != "by_step"}
            print(f"{name}: {shown} in {seconds:.0f} s", flush=True)
            if chosen.save:
                staleness_page.keep(name, found, settings)


if __name__ == "__main__":
    main()
