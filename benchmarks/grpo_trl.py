"""TRL's side of the training benchmarks: its GRPOTrainer, held before each step.

Run by the benchmarks (`grpo_work.start`) in TRL's environment, with the file that describes the work.

The settings below are the best that were found by reading TRL 1.16.0 and by trial. Seconds of one processor per step,
4 prompts, 8 rollouts, at most 24 tokens, float32, two or three steps each, on a busy machine:

- micro-batches of 32, 16, 8 rows: 37, 32, 33. Larger ones spend the difference in the kernel, on fresh memory.
- 16 rows and glibc told to keep freed memory: 29. So both sides run (`grpo_work.KEEP_MEMORY`).
- 16 rows and a static cache: 34. ``generate`` compiles nothing here, and a cache that is copied to grow costs less.
- Continuous batching (8 rollouts in all, at most 16 tokens): 19 where the plain way took 9, with 9 GB more memory.
- 16 rows, memory kept, torch.compile: 26, after 109 for the first step; another shape of batch has it compile once
  more. So it is on where a step is measured warm, and off where the way to an accuracy is.
- Liger's and the hub's kernels are for accelerators; vLLM as TRL drives it needs a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from last_integer import last_integer
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workers import Line, Paced


def settings(work: dict[str, Any]) -> GRPOConfig:
    """TRL's settings for the work: first what makes it the same as the other side's, then what makes it fast."""
    rows = work["prompts"] * work["samples"]
    return GRPOConfig(
        output_dir=work["folder"] + "/trl",
        seed=work["seed"],
        max_steps=work["steps"] + 1,
        shuffle_dataset=False,
        num_generations=work["samples"],
        generation_batch_size=rows,
        gradient_accumulation_steps=rows // work["microbatch"],
        max_completion_length=work["tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="dapo",
        scale_rewards="group",
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",  # autocast over float32 weights; by default it is on everywhere
        per_device_train_batch_size=work["microbatch"],
        torch_compile=work["compiled"],
        gradient_checkpointing=False,  # on by default, for a fifth more time
        beta=0.0,  # no reference model
        num_iterations=1,  # and one window of accumulation: no forward for the old log-probs either
        optim="adamw_torch_fused",
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",  # nothing goes to disk
        report_to=[],
        disable_tqdm=True,
    )


class Held(TrainerCallback):
    """Waits before each step until it is asked for."""

    def __init__(self, pace: Paced) -> None:
        self._pace = pace

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Called by the trainer when a step's texts have been read and nothing else of it is done."""
        self._pace.pause()


class Watch:
    """The seconds of a trainer's methods and what they made, seen from outside."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._metrics = trainer._metrics["train"]
        self._phases: dict[str, float] = {}
        self._tokens = 0
        self._time(trainer, "_generate_single_turn", "generate", self._count)
        self._time(trainer, "_calculate_rewards", "score")
        self._time(trainer, "_generate_and_score_completions", "prepare")

    def report(self, seconds: float) -> dict[str, Any]:
        """What a step of so many seconds did. All that is not preparing its batch is the update."""
        phases, self._phases = self._phases, {}
        phases["update"] = seconds - phases.pop("prepare")
        tokens, self._tokens = self._tokens, 0
        reward = self._metrics["reward"][-1]
        self._metrics.clear()  # as the trainer's logging would
        return {"tokens": tokens, "reward": reward, "phases": phases}

    def _count(self, made: Any) -> None:
        self._tokens += sum(map(len, made[0]))

    def _time(self, trainer: GRPOTrainer, method: str, name: str, seen: Callable[[Any], None] | None = None) -> None:
        plain = getattr(trainer, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            made = plain(*args, **kwargs)
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - start
            if seen is not None:
                seen(made)
            return made

        setattr(trainer, method, timed)


def main() -> None:
    """Train until nobody asks for steps any more."""
    line = Line()
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    rows = work["rows"]
    if tokenizer([r["prompt"] for r in rows])["input_ids"] != [r["ids"] for r in rows]:
        raise SystemExit("the prompts' tokens are not those of the other side")
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(work["model"], dtype="float32", attn_implementation="sdpa"),
        last_integer,
        settings(work),
        Dataset.from_list([{"prompt": r["prompt"], "answer": r["answer"]} for r in rows]),
        processing_class=tokenizer,
    )

    def save(folder: str) -> None:
        trainer.save_model(folder)

    trainer.add_callback(Held(Paced(line, Watch(trainer).report, {"save": save})))
    trainer.train()


if __name__ == "__main__":
    main()
