"""Weights from device to device: what vLLM's own sender is given and how it is driven; on CUDA, the whole way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tiny import tiny_model
from vllm_bench import TOKENIZER, ask, bench, gap, llama, needs_vllm, recipe

from assay.rollout.vllm import transfer
from assay.rollout.vllm.factory import embedded_engine, server_engine
from assay.rollout.vllm.port import PortError
from assay.rollout.vllm.transfer import DeviceTransfer, weight_source
from assay.rollout.vllm.workshop import Workshop

gpus = torch.cuda.device_count()


class Notes:
    """vLLM's side of an update, which notes what it is told."""

    def __init__(self, failing: bool = False) -> None:
        self.told: list[Any] = []
        self._failing = failing

    async def init_transfer(self, info: dict[str, Any]) -> None:
        self.told.append(("init", info))

    async def start_update(self) -> None:
        self.told.append("start")

    async def update(self, info: dict[str, Any]) -> None:
        if self._failing:
            raise PortError("no room")
        self.told.append(info)

    async def finish_update(self, version: str) -> None:
        self.told.append(("finish", version))


@needs_vllm
def test_the_source_declares_what_it_yields_and_follows_the_model():
    model = tiny_model("llama")
    source = weight_source(model, torch.bfloat16)
    declared = [(m.name, m.dtype, tuple(m.shape)) for m in source.metadata()]
    assert declared == [(name, t.dtype, tuple(t.shape)) for name, t in source]
    assert {dtype for _, dtype, _ in declared} == {torch.bfloat16}
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)
    assert torch.equal(dict(source)["model.norm.weight"], torch.full((64,), 3.0, dtype=torch.bfloat16))


@pytest.fixture
def a_sender(monkeypatch):
    """A sender of vLLM's own kind, in its registry, that hands the tensors' names to vLLM's side."""
    pytest.importorskip("vllm")
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    class Info(TrainerInitInfo):
        backend = "noting"

    class Sender(TrainerWeightTransferEngine):
        init_info_cls = Info

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            client.init_weight_transfer_engine({"workers": 2})
            return cls(client=client, source=source)

        def send_weights(self):
            self.client.start_weight_update()
            self.client.update_weights({"names": [name for name, _ in self.source]})
            self.client.finish_weight_update()

    monkeypatch.setitem(WeightTransferTrainerFactory._registry, "noting", lambda: Sender)
    monkeypatch.setattr(transfer, "init_info", lambda *_: Info(rank=0))


def test_vllms_sender_meets_once_and_sends_each_version(a_sender):
    model, notes = tiny_model("llama"), Notes()
    names = [name for name, _ in transfer.sent_weights(model)]

    async def scenario():
        way = DeviceTransfer(model, torch.float32, "nccl", notes, 2, "127.0.0.1")
        for version in (4, 5):
            await way.prepare(version)
            await way.send(version)
        await way.close()

    asyncio.run(scenario())
    one = ["start", {"names": names}]
    assert notes.told == [("init", {"workers": 2}), *one, ("finish", "4"), *one, ("finish", "5")]


def test_what_vllm_refuses_of_it_is_the_publishs_failure(a_sender):
    way = DeviceTransfer(tiny_model("llama"), torch.float32, "ipc", Notes(failing=True), 1, "127.0.0.1")
    with pytest.raises(PortError, match="no room"):
        asyncio.run(way.send(1))


@needs_vllm
@pytest.mark.gpu
@pytest.mark.skipif(gpus < 1, reason="needs a CUDA device")
def test_within_a_device_by_ipc_and_asleep_between():
    settings = recipe(rollout={"options": {"gpu_memory_utilization": 0.3, "enforce_eager": True}})
    with bench(lambda model: embedded_engine(settings, model.cuda(), TOKENIZER)) as it:
        for seed in (0, 1):
            it.run(it.publish(seed))
            rollout = it.run(it.answers(ask()))[0, 0]
            assert gap(llama(seed).cuda(), ask(), rollout) < 1e-2
            free = torch.cuda.mem_get_info()[0]
            it.run(it.engine.sleep())
            assert torch.cuda.mem_get_info()[0] > free


@needs_vllm
@pytest.mark.gpu
@pytest.mark.skipif(gpus < 2, reason="needs two CUDA devices")
def test_between_devices_by_nccl():
    settings = recipe(rollout={"options": {"gpu_memory_utilization": 0.3, "enforce_eager": True}})
    with bench(lambda model: server_engine(Workshop(settings, model.cuda(), TOKENIZER))) as it:
        for seed in (0, 1):
            it.run(it.publish(seed))
            assert gap(llama(seed).cuda(), ask(), it.run(it.answers(ask()))[0, 0]) < 1e-2
