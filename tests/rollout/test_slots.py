import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_helpers import requests

from assay.kernels.memory import on_demand
from assay.rollout.cache import AHEAD, BLOCK, SlotCache
from assay.rollout.masks import LayerMasks
from assay.rollout.scheduler import Scheduler
from assay.rollout.sequence import Sequence


def sequences(n: int) -> list[Sequence]:
    request = requests(["1"], n=n)[0]
    return [Sequence(request, i, np.zeros(4)) for i in range(n)]


@settings(deadline=None, max_examples=50)
@given(total=st.integers(1, 20), slots=st.integers(1, 8), ends=st.lists(st.sets(st.integers(0, 7)), max_size=12))
def test_slots_stay_dense_and_moves_follow_the_answers(total, slots, ends):
    scheduler = Scheduler(slots)
    scheduler.add(sequences(total))
    memory: dict[int, int] = {}
    entered, left = [], []
    for step in ends:
        known = set(map(id, scheduler.running))
        scheduler.admit()
        for slot, sequence in enumerate(scheduler.running):
            if id(sequence) not in known:
                memory[slot] = sequence.index
                sequence.cached = 1
                entered.append(sequence.index)
        assert len(scheduler.running) == min(slots, total - len(left))
        for slot in step & set(range(len(scheduler.running))):
            scheduler.running[slot].finish = "stop"
        finished, moves = scheduler.retire()
        for source, target in moves:
            memory[target] = memory[source]
        left += [s.index for s in finished]
        assert [memory[slot] for slot in range(len(scheduler.running))] == [s.index for s in scheduler.running]
    assert entered == sorted(entered)
    assert len(set(left)) == len(left)
    assert len(left) + len(scheduler.running) + len(scheduler.waiting) == total


def test_urgent_ones_are_filled_first_and_alone_and_the_cold_stand_behind_the_warm():
    scheduler = Scheduler(2)
    scheduler.add(sequences(3))
    scheduler.admit()
    assert scheduler.due == [0, 1]
    for sequence in scheduler.running:
        sequence.cached = 5
    urgent = Sequence(replace(requests(["2"], n=1)[0], id=9, urgent=True), 0, np.zeros(4))
    scheduler.add([urgent])
    scheduler.admit()
    assert (scheduler.warm, scheduler.due, scheduler.running[2]) == (2, [2], urgent)
    for sequence in scheduler.running:
        sequence.cached = 0  # a publish
    scheduler.admit()
    assert (scheduler.warm, scheduler.due, scheduler.running[0]) == (0, [0], urgent)
    urgent.cached = 3
    assert (scheduler.warm, scheduler.due) == (1, [])
    scheduler.running[1].finish = "cancelled"
    finished, moves = scheduler.retire()
    assert ([s.index for s in finished], moves) == ([0], [])
    urgent.finish = "stop"
    scheduler.retire()
    scheduler.admit()
    assert ([s.index for s in scheduler.running], scheduler.due) == ([1, 2], [0, 1])


@pytest.mark.parametrize("lazy", [False, True])
def test_growth_keeps_what_is_stored_and_new_memory_is_zero(lazy):
    cache = SlotCache(lazy)
    cache.reserve(2, 5)
    keys, values = cache.layer(0, torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 4))
    assert keys.shape == (2, 2, 32, 3)
    assert values.shape == (2, 2, 32, 4)
    keys[1, :, :5] = 7.0
    prefix = cache.save(1, (1, 2, 3), torch.zeros(9))
    cache.reserve(4, 129)
    assert cache.keys[0].shape[0] == 4
    assert cache.keys[0].shape[2] >= 129
    assert (cache.keys[0][1, :, :5] == 7).all()
    assert cache.keys[0].sum() == 7 * 2 * 5 * 3
    cache.restore(prefix, [0, 3])
    assert (cache.keys[0][[0, 3], :, :3] == 7).all()
    assert cache.keys[0].sum() == 7 * 2 * (5 + 3 + 3) * 3


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not on_demand(), reason="this system takes all that is mapped")
def test_room_for_all_that_may_follow_takes_no_memory_and_is_never_copied():
    cache = SlotCache(on_demand=True)
    cache.reserve(64, 20, most=40_000)  # 64 x 2 x 40,000 x 64 bytes, 330 MB, for keys and as much for values
    before = resident()
    keys, _ = cache.layer(0, torch.ones(1, 2, 1, 16), torch.ones(1, 2, 1, 16))
    keys[:, :, :20] = 1.0
    assert resident() - before < 8 << 20  # also where the system hands out large pages unasked
    for length in (21, 500):
        cache.reserve(64, length)
        assert cache.keys[0] is keys
    cache.reserve(65, 30)  # what nobody has written to is not copied, or it would be taken
    assert resident() - before < 32 << 20
    assert cache.keys[0].shape[0] == 128
    assert cache.keys[0].sum() == 64 * 2 * 20 * 16


def test_memory_that_is_taken_at_once_is_asked_for_in_moderation():
    cache = SlotCache()
    cache.reserve(2, 20, most=40_000)
    assert 20 + AHEAD <= cache.capacity < 20 + AHEAD + BLOCK


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_process_whose_addresses_are_limited_reserves_nothing():
    """As batch systems limit them: a mapping that is not used would count."""
    code = "from assay.kernels.memory import on_demand; print(on_demand())"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 44, 1 << 44)); {code}"
    assert subprocess.run([sys.executable, "-c", limit], capture_output=True, text=True).stdout == "False\n"


def test_masks_show_the_window_and_let_padding_see_itself_only():
    masks = LayerMasks({"full_attention": 0, "sliding_attention": 2, "chunked_attention": 2})
    positions = torch.tensor([[-1, 0, 1, 2]])
    built = masks.build(positions, positions, torch.float32)
    assert isinstance(built, dict)
    seen = {kind: (m[0, 0] == 0).int().tolist() for kind, m in built.items()}
    assert seen["full_attention"] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]
    assert seen["sliding_attention"] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert seen["chunked_attention"] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
