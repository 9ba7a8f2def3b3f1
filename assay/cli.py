"""The command: `assay train | sft | eval | sample | show | export | report | explain | score | audit | ...`.

Exit status 0 done; 1 the run failed; 2 the user can mend it, in one line that says what, where and how; 130
interrupted, with the command that resumes. A traceback is shown with ``--debug`` only.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from assay.errors import AssayError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train language models by reinforcement learning on rewards that a program can verify.",
)

RecipeFile = Annotated[Path, typer.Argument(help="Recipe file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value overrides, such as update.learning_rate=1e-5.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the newest run of this recipe.")]
RunToResume = Annotated[Path | None, typer.Option("--run", help="Go on with this run folder.")]
ConsoleKind = Annotated[str, typer.Option(help="auto, live, plain or silent.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@app.callback()
def _root(debug: Debug = False) -> None:
    """Settings of every command: what libraries say of themselves is kept off the screen."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not debug:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        warnings.filterwarnings("ignore", category=FutureWarning)


@app.command("sft", help="Warm up on given completions (a `completion` column), for a model too weak to ever be right.")
@app.command("train", help="Train by reinforcement learning: sample, judge, update. Writes a run folder with a report.")
def train(
    context: typer.Context,
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Resume = False,
    run: RunToResume = None,
    console: ConsoleKind = "auto",
) -> None:
    """Run a training command and say where the result lies, or how to go on."""
    from assay.loop.folder import RunFolder
    from assay.loop.sft import train_on_completions
    from assay.loop.trainer import train as train_on_rewards
    from assay.recipe.load import load_recipe
    from assay.view.outcome import outcome_panel
    from assay.view.report import write_report

    name = str(context.info_name)
    training = {"train": train_on_rewards, "sft": train_on_completions}[name]
    command = ("assay", name, str(recipe), *(overrides or []))
    resolved = replace(load_recipe(recipe, overrides or []), command=command)
    settings = resolved.recipe
    shown = _console(console, settings.track.samples_every, settings.reward.gold)
    outcome = training(resolved, resume=run or resume, console=shown)
    page = write_report(outcome.folder)
    if not outcome.finished:
        print(f"interrupted after step {outcome.step}; go on with {RunFolder(outcome.folder).resuming(command)}")
        raise typer.Exit(130)
    if console != "silent":
        Console().print(outcome_panel(outcome.folder, page))
    print(outcome.folder)


@app.command("eval")
def evaluate(
    recipe: RecipeFile,
    overrides: Overrides = None,
    console: ConsoleKind = "auto",
) -> None:
    """Evaluate model.path on the held-out prompts: greedy, mean@n, pass@k, majority@k, with intervals."""
    from assay.loop.assess import assess
    from assay.recipe.load import load_recipe
    from assay.view.outcome import estimates_table

    found = assess(load_recipe(recipe, overrides or []), _console(console))
    Console().print(estimates_table({"held out": found}))


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="Folder of a model, adapters or a run, hub name, or demo.")],
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    n: Annotated[int, typer.Option("-n", min=1, help="How many answers.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Ask a model and print its answers with their log-probs."""
    from assay.loop.assess import ask
    from assay.view.outcome import answers_panel

    rollouts = ask(model, prompt, n=n, max_tokens=max_tokens, temperature=temperature, seed=seed)
    Console().print(answers_panel(prompt, rollouts))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Run folder, or its name in ./runs.")],
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    phase: Annotated[str, typer.Option(help="train, eval, unused, replaced, or failed (the last batch).")] = "train",
    outcome: Annotated[str | None, typer.Option(help="Only verdicts with this outcome, such as no_answer.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Only prompts whose id begins so.")] = None,
    right: Annotated[bool | None, typer.Option("--right/--wrong", help="Only right, or only wrong answers.")] = None,
    sort: Annotated[str, typer.Option(help="step, reward or length.")] = "step",
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all.")] = 8,
    alarms: Annotated[bool, typer.Option("--alarms", help="The alarms of the run, in place of completions.")] = False,
    folder: Annotated[str, typer.Option(help="Where runs lie.")] = "runs",
) -> None:
    """Read completions, verdicts and advantages of a run, or its alarms."""
    from assay.view.show import Selection, show_alarms
    from assay.view.show import show as show_run

    if alarms:
        show_alarms(run, Console(), folder)
        return

    selection = Selection(step, phase, outcome, prompt, right, sort, limit)
    show_run(run, selection, Console(), folder)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="Run folder, or its name in ./runs.")],
    step: Annotated[int | None, typer.Option(help="The checkpoint after this step.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint with the best held-out accuracy.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to; absent: model-step-N in the run folder.")] = None,
    folder: Annotated[str, typer.Option(help="Where runs lie.")] = "runs",
) -> None:
    """Write the model of a run's checkpoint: the best one if it is kept, else the last, or the one asked for."""
    from assay.loop.folder import RunFolder
    from assay.loop.release import release
    from assay.view.run_record import locate

    print(release(RunFolder(locate(run, folder)), step, best, out))


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Run folder, or its name in ./runs.")],
    folder: Annotated[str, typer.Option(help="Where runs lie.")] = "runs",
) -> None:
    """Write report.html of a run anew, also of one that is still running."""
    from assay.view.report import write_report
    from assay.view.run_record import locate

    print(write_report(locate(run, folder)))


@app.command()
def explain(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe file; without one, the presets.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print a recipe's objective as formulas with numbers, and where each value came from."""
    from assay.explain import explain as explain_recipe
    from assay.recipe.load import load_recipe

    explain_recipe(None if recipe is None else load_recipe(recipe, overrides or []), Console())


@app.command()
def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=0, max=4096, help="How many; 0: this machine's processor.")] = 0,
    run: Annotated[
        str | None, typer.Option("--from", help="Run whose costs and lengths to use, or name in runs.")
    ] = None,
    measure: Annotated[int | None, typer.Option(min=1, help="Train here for so many steps, and measure them.")] = None,
    costs: Annotated[Path | None, typer.Option(help="File with costs, as in docs/plan.md.")] = None,
    device: Annotated[str | None, typer.Option(help="h100, a100, ...: costs from its data sheet.")] = None,
    parameters: Annotated[float | None, typer.Option(min=1, help="Size of the model, such as 8e9.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Simulate so many steps of each option.")] = None,
    seed: Annotated[int, typer.Option(help="Of the lengths drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folder: Annotated[str, typer.Option(help="Where runs lie.")] = "runs",
) -> None:
    """Simulate the run on N GPUs: step time, idle shares, staleness, the best split and regime.max_staleness."""
    import json

    from assay.plan.make import Known, make_plan
    from assay.plan.report import as_json as plain
    from assay.plan.report import show as show_plan
    from assay.recipe.load import load_recipe
    from assay.view.run_record import locate

    known = Known(locate(run, folder) if run else None, measure, costs, device, parameters)
    settings = load_recipe(recipe, overrides or []).recipe
    shown = _console("silent" if as_json else "plain")
    found = make_plan(settings, gpus, known, steps=steps, seed=seed, console=shown)
    if as_json:
        print(json.dumps(plain(found), indent=2))
    else:
        show_plan(found, Console())


@app.command("serve-reward")
def serve_reward(
    model: Annotated[str, typer.Argument(help="Folder of a sequence classifier, or hub name.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8100,
    max_batch: Annotated[int, typer.Option(min=1, help="Most completions in a batch.")] = 32,
    max_wait_ms: Annotated[float, typer.Option(min=0, help="How long the first of a batch waits for more.")] = 5.0,
    device: Annotated[str, typer.Option(help="auto, or a torch device.")] = "auto",
    label: Annotated[
        int | None, typer.Option(help="Of several labels, the one whose probability is the score.")
    ] = None,
) -> None:
    """Serve a reward model over HTTP, for the verifier reward_model."""
    from functools import partial

    from assay.reward.serve.server import serve_reward as serve

    serve(
        model,
        host=host,
        port=port,
        max_batch=max_batch,
        max_wait_s=max_wait_ms / 1000,
        device=device,
        label=label,
        say=partial(print, flush=True),
    )


@app.command()
def score(
    file: Annotated[str, typer.Argument(help="Completions, a JSON object a line; - reads standard input.")],
    settings: Annotated[list[str] | None, typer.Argument(help="key=value options of --verifier.")] = None,
    verifier: Annotated[str | None, typer.Option(help="Judge every line by it; absent: by each line's kind.")] = None,
    completion: Annotated[str, typer.Option(help="Column of the completion.")] = "completion",
    gold: Annotated[str, typer.Option(help="Column of the right answer.")] = "gold",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one verdict.")] = 30.0,
) -> None:
    """Judge completions of any trainer: a JSON verdict a line on standard output, in the order of the file."""
    from assay.reward.offline import Columns
    from assay.view.scores import score as score_file

    columns = Columns(completion, gold)
    score_file(file, verifier, settings or [], workers=workers, timeout_s=timeout, columns=columns)


@app.command()
def audit(
    verifier: Annotated[str, typer.Argument(help="Built-in name, or path/to/file.py:function.", show_default=False)],
    data: Annotated[str, typer.Argument(help="A data file, or reasoning_gym:NAME.", show_default=False)],
    settings: Annotated[list[str] | None, typer.Argument(help="key=value options of the verifier.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Use only so many rows.")] = 100,
    gold: Annotated[str, typer.Option(help="Column of the right answer.")] = "answer",
    form: Annotated[str | None, typer.Option(help="How answers are stated, {} for the answer.")] = None,
    max_false_accept: Annotated[float, typer.Option(min=0, max=1, help="Share of wrong ones accepted.")] = 0.0,
    max_false_reject: Annotated[float, typer.Option(min=0, max=1, help="Share of right ones rejected.")] = 0.02,
    completions: Annotated[str | None, typer.Option(help="Also compare verifiers on these completions.")] = None,
    against: Annotated[list[str] | None, typer.Option(help="Verifiers to compare with.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one verdict.")] = 30.0,
) -> None:
    """Attack a verifier before training: equivalents must pass, near misses and cheats must not; exit 1 if not so."""
    from assay.reward.offline import Columns
    from assay.view.audit import Thresholds, disagree
    from assay.view.audit import audit as attack

    console, words = Console(), settings or []
    bounds = Thresholds(max_false_accept, max_false_reject)
    sound = attack(
        verifier,
        data,
        words,
        console,
        limit=limit,
        gold=gold,
        form=form,
        thresholds=bounds,
        workers=workers,
        timeout_s=timeout,
    )
    if completions is not None:
        disagree(
            verifier,
            against or ["math", "number"],
            completions,
            words,
            console,
            limit=limit,
            columns=Columns(),
            workers=workers,
            timeout_s=timeout,
        )
    raise typer.Exit(0 if sound else 1)


@app.command()
def fetch() -> None:
    """Fetch the demo model (SmolLM2-135M-Instruct, 93 MB) into the cache and convert it once."""
    from assay.data.demo_model import fetch_demo_model

    print(fetch_demo_model(progress=lambda line: print(line, file=sys.stderr, flush=True)))


@app.command()
def doctor() -> None:
    """Say what is installed, what this machine can do, what would work, and what to install."""
    from assay.doctor import doctor as examine

    raise typer.Exit(examine(Console()))


def _console(kind: str, samples_every: int = 5, gold: str = "answer") -> Any:
    from assay.track.console import make_console

    return make_console(kind, samples_every, gold)


def main() -> None:
    """The entry point: errors become one line and an exit status."""
    debug = "--debug" in sys.argv  # wherever it stands
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(["--debug", *words] if debug else words)
    except AssayError as error:
        if debug:
            raise
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
