"""The native engine in a process of its own: the same answers, and no way to die, hang or half-read unnoticed."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
import torch
from rollout_helpers import TOKENIZER, collect, prompt, requests
from tiny import tiny_model

from assay.errors import AssayError, UserError
from assay.records import Prompt
from assay.rollout.engine import EngineFailed, Request
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.native import NativeEngine
from assay.rollout.process.board import Board, mapped
from assay.rollout.process.engine import ProcessEngine
from assay.rollout.process.messages import Settings
from assay.rollout.sampling import Sampling

PATIENCE = 400.0
"""Seconds after which a scenario is taken to hang."""


def play(scenario):
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


@asynccontextmanager
async def process_on(model, *, timeout_s=60.0, board=None, **settings):
    values = {"dtype": "float32", "max_running": 5, "threads": 1, **settings}
    engine = ProcessEngine(board or Board(model), model, TOKENIZER, Settings(**values), timeout_s=timeout_s)
    try:
        yield engine
    finally:
        await engine.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shake(model, seed: int) -> None:
    """Other weights, in place, as an optimizer writes them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


async def rounds(engine, model, wanted, steps=2):
    """Segments, texts and statistics of rounds with other weights before each."""
    seen = []
    for version in range(1, steps + 1):
        shake(model, version)
        await engine.publish(version)
        answers = await collect(engine, wanted)
        seen.append(({k: (r.segments, r.finish, r.text) for k, r in answers.items()}, engine.stats))
        await engine.sleep()
    return seen


@pytest.mark.parametrize(
    ("family", "settings", "options"),
    [("gemma2", {"top_k": 6}, {}), ("qwen2", {}, {"dtype": "bfloat16"}), ("llama", {}, {"lora": 1})],
)
def test_its_rounds_are_those_of_the_engine_in_this_process_bit_for_bit(family, settings, options):
    """Tied and untied weights, norms with an offset, biases, adapters, another precision; sleep in between."""
    dtype = options.get("dtype", "float32")

    def made():
        model = tiny_model(family, sharpness=2.0 if settings else 1.0)
        if "lora" in options:
            from assay.policy.model import add_lora
            from assay.recipe.schema import LoraRecipe

            model = add_lora(model, LoraRecipe(rank=2), 0)
        return model

    async def both():
        wanted = requests(n=3, max_tokens=12, **settings)
        model = made()
        native = NativeEngine(model, TOKENIZER, dtype=getattr(torch, dtype), max_running=5, deterministic=True)
        here = await rounds(native, model, wanted)
        model = made()
        async with process_on(model, dtype=dtype, deterministic=True) as engine:
            there = await rounds(engine, model, wanted)
            assert "in a process of its own" in engine.path
            with pytest.raises(UserError, match="context is 256"):
                await engine.submit(Request(0, Prompt("p", (), "", (5,) * 256), 1, Sampling()))
        return here, there

    here, there = play(both())
    assert here == there
    assert here[0][0] != here[1][0]


def test_tokens_are_those_of_whole_weights_while_the_trainer_writes_its_own():
    """The trainer's tensors are scribbled over as soon as they are published, with answers running all the time."""
    model = tiny_model("llama", sharpness=2.0, eos_token_id=None)
    model.generation_config.eos_token_id = None
    versions = 6
    kept = {}

    async def scenario():
        async with process_on(model, max_running=16) as engine:
            await engine.publish(0)
            kept[0] = {name: p.detach().clone() for name, p in model.named_parameters()}
            for request in requests(n=4, max_tokens=200):
                await engine.submit(request)
            seen = {}
            async with aclosing(engine.finished()) as stream:
                reader = asyncio.ensure_future(anext(stream))
                for version in range(1, versions):
                    shake(model, version)
                    kept[version] = {name: p.detach().clone() for name, p in model.named_parameters()}
                    await engine.publish(version)
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter.fill_(torch.nan)
                    await asyncio.sleep(0.01)
                    with torch.no_grad():
                        for name, parameter in model.named_parameters():
                            parameter.copy_(kept[version][name])
                i, rollout = await reader
                seen[i, rollout.index] = rollout
                async for i, rollout in stream:
                    seen[i, rollout.index] = rollout
            return seen

    seen = play(scenario())
    assert len(seen) == 24
    used = set()
    for version, weights in kept.items():
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        for rollout in seen.values():
            (segment,) = rollout.segments
            ids = torch.tensor([[*prompt(rollout.prompt_id).token_ids, *rollout.token_ids]])
            with torch.no_grad():
                logprobs = model(ids).logits[0, -len(rollout) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
            mine = [k for k, v in enumerate(segment.versions) if v == version]
            used.update(segment.versions)
            got = torch.tensor(segment.sampler_logprobs)
            assert (got[mine] - expected[mine]).abs().max() < 1e-4 if mine else True
    assert len(used) > 2


def test_a_killed_child_is_an_error_and_what_it_held_is_known():
    model = tiny_model("llama", eos_token_id=None)
    model.generation_config.eos_token_id = None

    async def scenario():
        async with process_on(model) as engine:
            await engine.publish(3)
            assert os.getsid(engine.pid) == engine.pid  # an interrupt from the terminal does not reach it
            for request in requests(n=6, max_tokens=200):
                await engine.submit(request)
            while not any(r.segments for _, r in await engine.partials()):
                await asyncio.sleep(0.01)
            os.kill(engine.pid, signal.SIGKILL)
            taken = []

            async def read() -> None:
                async for i, rollout in engine.finished():
                    taken.append((i, rollout))

            with pytest.raises(AssayError, match=r"the generation process \(pid \d+\) died of SIGKILL") as caught:
                await read()
            assert not isinstance(caught.value, EngineFailed)
            held = [*taken, *await engine.partials()]
            assert {(i, r.index) for i, r in held} == {(i, k) for i in range(6) for k in range(6)}
            begun = next((i, r) for i, r in held if r.segments)
            for call in (engine.submit(requests(n=1, first_id=50)[0]), engine.publish(4), engine.cancel(0)):
                with pytest.raises(AssayError, match="died of SIGKILL"):
                    await call
            return begun

    request_id, rollout = play(scenario())
    request = requests(n=6, max_tokens=200)[request_id]
    whole = asyncio.run(collect(NativeEngine(model, TOKENIZER), [request]))[request_id, rollout.index]
    assert rollout.token_ids == whole.token_ids[: len(rollout)]
    assert rollout.text == TOKENIZER.decode([t for t in rollout.token_ids if t != TOKENIZER.eos_token_id])
    assert set(rollout.segments[0].versions) == {3}


def test_a_child_that_says_nothing_is_killed():
    async def scenario():
        async with process_on(tiny_model("llama"), timeout_s=0.5) as engine:
            await engine.ready()
            os.kill(engine.pid, signal.SIGSTOP)
            publishing = asyncio.ensure_future(engine.publish(1))
            await engine.submit(requests(n=2)[0])
            with pytest.raises(AssayError, match=r"said nothing for 0.5 s \(rollout.timeout_s\), with 2 answers"):
                async for _ in engine.finished():
                    pass
            with pytest.raises(AssayError, match="said nothing"):
                await publishing
            assert not is_alive(engine.pid)

    play(scenario())


def test_errors_of_the_child_are_errors_here():
    """Weights that diverged would fail any other process too; a model that it cannot serve is for the user to mend."""
    from transformers import MambaConfig, MambaForCausalLM

    model = tiny_model("llama")
    mamba = MambaForCausalLM(MambaConfig(vocab_size=88, hidden_size=16, num_hidden_layers=1, state_size=4))

    async def scenario():
        async with process_on(model) as engine, process_on(mamba) as other:
            await engine.ready()
            with torch.no_grad():
                model.model.norm.weight[0] = torch.nan
            await engine.publish(1)
            await engine.submit(requests(n=1)[0])
            with pytest.raises(EngineFailed, match="the generation process failed: the model's logits are NaN"):
                async for _ in engine.finished():
                    pass
            with pytest.raises(UserError, match="cannot serve 'mamba'"):
                await other.ready()

    play(scenario())


PARENT = """
import asyncio, sys
from rollout_helpers import TOKENIZER, requests
from tiny import tiny_model
from test_generation_process import process_on

async def main():
    async with process_on(tiny_model("llama")) as engine:
        await engine.ready()
        print(engine.pid, flush=True)
        await engine.submit(requests(n=1)[0])
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_child_does_not_outlive_its_parent():
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), str(here.parents[1])])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate(timeout=PATIENCE)
    assert asyncio.run(_gone(child))


async def _gone(pid: int) -> bool:
    for _ in range(600):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def test_a_fleet_of_processes_survives_kills_and_hangs():
    """One is killed, one is stopped, both while they answer: each answer comes once, and is what it would have been."""
    model = tiny_model("llama", sharpness=2.0)
    board = Board(model)
    wanted = requests(n=3, max_tokens=60)
    started = []

    def engine():
        settings = Settings(dtype="float32", max_running=4, threads=1)
        started.append(ProcessEngine(board, model, TOKENIZER, settings, timeout_s=10.0))
        return started[-1]

    async def restart():
        made = engine()
        await made.ready()
        return made

    async def scenario():
        warnings = []
        replicas = [Replica(f"replica {k}", engine(), restart) for k in range(2)]
        fleet = Fleet(replicas, retries=3, warn=warnings.append)
        try:
            await fleet.publish(1)
            for request in wanted:
                await fleet.submit(request)
            seen = []
            faults = [(started[0], signal.SIGKILL), (started[1], signal.SIGSTOP)]
            async for i, rollout in fleet.finished():
                seen.append((i, rollout))
                if faults:
                    victim, number = faults.pop()
                    with suppress(ProcessLookupError):  # it was silent for too long before
                        os.kill(victim.pid, number)
            await fleet.publish(2)
            while fleet.serving < 2:
                await asyncio.sleep(0.02)
            assert [e.version for e in started if is_alive(e.pid)] == [2, 2]
            return seen, warnings
        finally:
            await fleet.close()

    seen, warnings = play(scenario())
    assert not [e for e in started if is_alive(e.pid)]
    whole = asyncio.run(collect(NativeEngine(model, TOKENIZER, version=1), wanted))
    assert sorted((i, r.index) for i, r in seen) == sorted(whole)
    for i, rollout in seen:
        assert rollout.token_ids == whole[i, rollout.index].token_ids
        assert rollout.segments[0].versions == whole[i, rollout.index].segments[0].versions
        assert rollout.sampler_logprobs == pytest.approx(whole[i, rollout.index].sampler_logprobs, abs=1e-4)
    assert {w.split(" is lost")[0] for w in warnings if "is lost" in w} == {"replica 0", "replica 1"}


def test_the_board_is_not_written_while_it_is_read_and_once_for_all_readers():
    model = tiny_model("llama")
    board, one, two = Board(model), object(), object()
    head = mapped(board.descriptor, board.plan)["model.norm.weight"]
    events = []

    async def read(reader, version, value=None):
        async with board.edition(reader, version):
            first = float(head[0])
            for _ in range(5):
                await asyncio.sleep(0)
            events.append((version, first, float(head[0])))

    async def scenario():
        for version in (1, 2, 3):
            with torch.no_grad():
                model.model.norm.weight.fill_(float(version))
            both = [asyncio.ensure_future(read(r, version)) for r in (one, two)]
            await asyncio.sleep(0)
            with torch.no_grad():
                model.model.norm.weight.fill_(-1.0)  # the trainer goes on: what stands on the board is not its tensor
            await asyncio.gather(*both)
        board.begin(one)
        waiting = asyncio.ensure_future(read(two, 4))
        for _ in range(5):
            await asyncio.sleep(0)
        assert float(head[0]) == 3.0
        board.end(one)
        await waiting
        assert float(head[0]) == -1.0

    play(scenario())
    assert events[:6] == [(v, v, v) for v in (1, 2, 3) for _ in range(2)]


def test_tied_weights_lie_on_the_board_once_and_a_changed_structure_is_refused():
    model = tiny_model("llama")
    board = Board(model)
    tensors = mapped(board.descriptor, board.plan)
    assert tensors["lm_head.weight"] is tensors["model.embed_tokens.weight"]
    assert board.plan.size < 1.01 * sum(p.nbytes for p in model.parameters()) + 64 * len(tensors)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(AssayError, match=r"'lm_head.weight' was not there"):
        play(board.edition(object(), 1).__aenter__())
