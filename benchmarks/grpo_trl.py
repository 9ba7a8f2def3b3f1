"""TRL's side of the training benchmarks: its GRPOTrainer, held before each step.

Run by the benchmarks (`grpo_work.start`) in TRL's environment, with the file that describes the work.
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
    """TRL's settings for the work."""
    rows = work["prompts"] * work["samples"]
    return GRPOConfig(
        output_dir=work["folder"] + "/trl",
        seed=work["seed"],
        max_steps=work["steps"] + 1,
        shuffle_dataset=False,
        # The same mathematics as the other side's.
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
        # What makes it fast.
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",
        per_device_train_batch_size=work["microbatch"],
        gradient_checkpointing=False,
        beta=0.0,
        num_iterations=1,
        optim="adamw_torch_fused",
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
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
