"""The final duel on copies of the tensors: what is faster only where they lie is not chosen."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeConfig as Config
from hypothesis import given
from hypothesis import strategies as st

import autotuned
from autotuned import autotune
from autotuned.search import duel as duels
from autotuned.search import race, timers
from autotuned.search.duel import Duel
from autotuned.search.safety import placements
from autotuned.search.trial import Trial
from autotuned.store import records
from autotuned.tunable.call import Call


def call_of(**arguments: Any) -> Call:
    return Call((), arguments, arguments)


def placed(count: int = 2, written: tuple[str, ...] = (), **arguments: Any) -> list[placements.Placement]:
    return list(placements.elsewhere(call_of(**arguments), written, count))


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.data_ptr() % 512


# -- copies --------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([torch.float16, torch.float32, torch.int8, torch.int64]),
    st.integers(0, 40), st.lists(st.integers(0, 5), max_size=3), st.booleans(),
)  # fmt: skip
def test_a_copy_is_all_that_a_key_or_a_compiler_sees(dtype: Any, skip: int, shape: list[int], turned: bool) -> None:
    whole = torch.arange(400).to(dtype)
    tensor = whole[skip:].as_strided(shape, [3**dim for dim in range(len(shape))])
    tensor = tensor.T if turned and tensor.dim() == 2 else tensor
    copies = placed(3, x=tensor, n=3, flag=None)
    assert len(copies) == 3
    for one in copies:
        copy = one.call.arguments["x"]
        assert facts(copy) == facts(tensor) and torch.equal(copy, tensor)
        assert (one.call.arguments["n"], one.call.kwargs["x"] is copy) == (3, True)
    places = [whole, *(one.call.arguments["x"] for one in copies)]
    assert len({one.untyped_storage().data_ptr() for one in places}) == 4


def test_views_of_one_storage_stay_so_and_positions_are_kept() -> None:
    whole = torch.arange(64.0)
    x, y = whole[:32], whole[16:]
    [one] = placements.elsewhere(Call((x, 7), {"y": y}, {"x": x, "n": 7, "y": y}), ("x",), 1)
    x2, n, y2 = one.call.args[0], one.call.args[1], one.call.kwargs["y"]
    assert n == 7 and y2.data_ptr() - x2.data_ptr() == y.data_ptr() - x.data_ptr()
    x2[16] = -1.0
    assert y2[0] == -1.0 and y[0] == 16.0


def test_only_what_is_written_is_renewed() -> None:
    x, out = torch.ones(8), torch.zeros(8)
    [one] = placed(1, ("out",), x=x, out=out)
    for tensor in (x, out):
        tensor.fill_(5.0)
    one.renew()
    assert one.call.arguments["out"].tolist() == [5.0] * 8
    assert one.call.arguments["x"].tolist() == [1.0] * 8


def test_a_copy_is_the_kind_of_object_that_its_original_is() -> None:
    weight, leaf = torch.nn.Parameter(torch.ones(4)), torch.ones(4, requires_grad=True)
    weight.loader = len  # type: ignore[attr-defined]
    [one] = placed(1, weight=weight, leaf=leaf, node=leaf * 2, plain=torch.ones(4))
    copies = one.call.arguments
    assert type(copies["weight"]) is torch.nn.Parameter and copies["weight"].loader is len
    assert [copy.requires_grad for copy in copies.values()] == [True, True, True, False]


@pytest.mark.parametrize("first", ["short", "long", "shifted"])
def test_storages_that_overlap_without_being_one_are_not_moved(first: str) -> None:
    array = np.arange(100.0)
    parts = {"short": array[:10], "long": array, "shifted": array[5:]}
    others = {name: torch.from_numpy(part) for name, part in parts.items() if name != first}
    assert placed(**{first: torch.from_numpy(parts[first])}, **others) == []
    assert len(placed(x=torch.from_numpy(array[:50]), y=torch.from_numpy(array[50:]), z=torch.empty(0))) == 2


def test_tensors_to_whose_memory_torch_gives_no_access_are_not_moved() -> None:
    found: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        found.append(placed(x=x, y=torch.ones(3)))
        return x

    torch.func.vmap(look)(torch.ones(2, 3))
    assert found == [[]]


def with_gradient() -> torch.Tensor:
    tensor = torch.ones(3, requires_grad=True)
    tensor.grad = torch.ones(3)
    return tensor


def with_scale() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.scale = torch.ones(1)  # type: ignore[attr-defined]
    return tensor


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [[torch.ones(3)], (torch.ones(3), 2), torch.ones(3).as_subclass(Own), {"a": torch.ones(3)},
     torch.ones(2, 2).to_sparse(), torch.ones(3, dtype=torch.complex64).conj(),
     torch.ones(3, dtype=torch.complex64).conj().imag, with_gradient(), with_scale()],
    ids=["list", "tuple", "subclass", "dict", "sparse", "conjugated", "negated", "with a gradient", "with a tensor"],
)  # fmt: skip
def test_what_is_no_plain_tensor_is_not_moved(value: Any) -> None:
    assert placed(x=torch.ones(3), other=value) == []


def test_what_lies_on_several_devices_or_in_pinned_memory_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reaches pinned memory and none other of the host: a launch on a plain copy would lose the device."""
    here, there = (SimpleNamespace(device=f"cuda:{index}", is_cuda=True) for index in range(2))
    host = SimpleNamespace(device="cpu", is_cuda=False, is_pinned=lambda: True)
    assert placements._are_together([here, here])
    assert not any(map(placements._are_together, ([here, there], [here, host], [host], [])))
    pinned = torch.ones(3)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self, device=None: self is pinned)
    assert placed(x=torch.ones(3), y=pinned) == []
    assert len(placed(x=torch.ones(3))) == 2


def test_large_tensors_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(4, 8)
    monkeypatch.setattr(placements, "MOST_BYTES", 2 * tensor.nbytes)
    assert len(placed(2, x=tensor, row=tensor[1])) == 2, "what shares memory counts once"
    assert placed(3, x=tensor) == placed(2, x=tensor, y=torch.ones(1)) == []


def test_without_memory_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = placements._copy
    left = [2]

    def copy(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return copied(*given)

    monkeypatch.setattr(placements, "_copy", copy)
    assert len(placed(3, x=torch.ones(3))) == 2


# -- the duel ------------------------------------------------------------------------------------------------------------


def fought(lead: float, *elsewhere: float) -> Duel:
    pair = (
        Trial(index, lambda: None, lambda: None, samples_us=[us] * 5) for index, us in enumerate((100.0, 100 * lead))
    )
    return Duel(*pair, elsewhere=tuple(map(fought, elsewhere)))


@pytest.mark.parametrize(
    ("leads", "won"),
    [((1.03, 1.02, 1.01, 1.0), True), ((1.03, 1.02, 1.02, 0.98), False), ((1.01, 0.995, 0.995, 0.995), False),
     ((1.03,), True), ((1.03, 0.9), False)],
)  # fmt: skip
def test_it_is_won_over_all_places_by_more_than_they_differ(leads: tuple[float, ...], won: bool) -> None:
    assert fought(*leads).is_won is won


def disturbed(lead: float, seed: int, bursts: bool) -> Duel:
    """A duel at six places, beside another who uses the device for three tenths of the time.

    `bursts` slow some samples in a row, as on an H200; else each sample is slowed by itself.
    """
    noise, left, slow = random.Random(seed), 0, 1.0

    def slowed() -> float:
        nonlocal left, slow
        if not bursts:
            return 1 + (noise.random() < 0.3) * noise.expovariate(2.0)
        if left <= 0 and noise.random() < 0.05:
            left, slow = 4, noise.uniform(1.5, 2.0)
        left -= 1
        return slow if left >= 0 else 1.0

    def fought(count: int) -> Duel:
        pair = [Trial(index, lambda: None, lambda: None) for index in range(2)]
        for one in (one for _ in range(count) for one in noise.sample(pair, 2)):
            one.samples_us.append((100.0, 100 * lead)[one.index] * noise.gauss(1, 0.01) * slowed())
        return Duel(*pair)

    places = [fought(count) for count in (5, 3, 3, 3, 3, 3)]
    return replace(places[0], elsewhere=tuple(places[1:]))


@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize(("lead", "least", "most"), [(1.045, 90, 100), (1.0, 0, 12), (0.99, 0, 4), (0.97, 0, 1)])
def test_load_neither_hides_the_faster_nor_lets_the_slower_win(
    lead: float, least: int, most: int, bursts: bool
) -> None:
    duels = [disturbed(lead, seed, bursts) for seed in range(100)]
    assert sum(duel.is_disturbed for duel in duels) >= 60
    assert least <= sum(duel.is_won for duel in duels) <= most


class Places:
    """A callable whose fast config is so much faster for tensors at the caller's addresses, and at others."""

    def __init__(self, here: float, elsewhere: float, took: Callable[[float], None]) -> None:
        self.seen: list[list[float]] = []
        self.starts: set[int] = set()

        @autotune([Config({"fast": 0}), Config({"fast": 1})], key=["n"], objective="kernel", restore_value=["x"])
        def run(x: Any, out: Any, n: int, *, fast: int) -> None:
            self.starts.add(x.data_ptr())
            self.seen.append(x.tolist())
            out.copy_(x)
            x.add_(1.0)
            took(1000 / (here if x.data_ptr() == self.x.data_ptr() else elsewhere) ** fast)

        self.run, self.x, self.out = run, torch.zeros(4), torch.zeros(4)

    def search(self) -> int:
        with autotuned.mode("search"):
            self.run(self.x, self.out, 4)
        return int(self.run.best_config.kwargs["fast"])


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers.HostTimer, "overlaps", True, raising=False)


@pytest.mark.parametrize(
    ("here", "elsewhere", "chosen", "places"),
    [
        (1.04, 1.03, 1, 6),
        (1.04, 0.97, 0, 6),
        (1.04, 1.0, 0, 6),
        (1.01, 1.02, 1, 6),
        (1.5, 0.5, 1, 1),
        (0.97, 1.5, 0, 1),
    ],
)
def test_what_is_faster_only_here_is_not_chosen(
    took: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
    here: float,
    elsewhere: float,
    chosen: int,
    places: int,
) -> None:
    caplog.set_level(logging.INFO, "autotuned")
    kernel = Places(here, elsewhere, took)
    assert kernel.search() == chosen
    assert len(kernel.starts) == places
    assert ("no faster than the untuned config" in caplog.text) == (here > 1 and not chosen)
    assert all(seen == [0.0] * 4 for seen in kernel.seen), "each trial starts from the caller's data, elsewhere too"
    assert kernel.x.tolist() == [1.0] * 4 and kernel.out.tolist() == [0.0] * 4


@pytest.mark.parametrize("place", [1, 2, 4])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), MemoryError(), TimeoutError(), KeyError("unknown tensor")], ids=repr
)
def test_what_fails_on_copies_alone_leaves_choice_and_record(
    took: Callable[[float], None], error: Exception, place: int
) -> None:
    starts: list[int] = []
    x = torch.zeros(4)

    @autotune([Config({"fast": step}) for step in range(3)], key=["n"], objective="kernel", restore_value=["x"])
    def run(x: Any, n: int, *, fast: int) -> None:
        starts.extend([] if x.data_ptr() in starts else [x.data_ptr()])
        if starts.index(x.data_ptr()) == place:
            raise error
        x.add_(1.0)
        took((1000.0, 960.0, 2000.0)[fast])

    with autotuned.mode("search"):
        run(x, 4)
    assert len(starts) == place + 1 and x.tolist() == [1.0] * 4
    record = records.read_of(run.tuner.chooser.key(run.tuner.call((x, 4), {}, None)))
    assert record is not None and [timing.status for timing in record.timings] == ["ok"] * 3
    assert run.best_config.kwargs == {"fast": 1}


def test_memory_that_is_full_in_the_last_comparison_alone_leaves_the_untuned_config(
    took: Callable[[float], None],
) -> None:
    x = torch.zeros(4)

    @autotune([Config({"fast": step}) for step in range(2)], key=["n"], objective="kernel", restore_value=["x"])
    def run(x: Any, n: int, *, fast: int) -> None:
        if fast and duels.Duel in seen:
            raise torch.OutOfMemoryError("full")
        took((1000.0, 600.0)[fast])

    seen: list[Any] = []
    duel = duels.fight

    def begin(*given: Any, **named: Any) -> Duel:
        seen.append(Duel)
        return duel(*given, **named)

    with pytest.MonkeyPatch.context() as patch, autotuned.mode("search"):
        patch.setattr(duels, "fight", begin)
        run(x, 4)
    record = records.read_of(run.tuner.chooser.key(run.tuner.call((x, 4), {}, None)))
    assert record is not None and record.quality == "unresolved"
    assert [timing.status for timing in record.timings] == ["ok", "ok"]
    assert run.best_config.kwargs == {"fast": 0}


def test_what_is_zeroed_is_zero_in_each_trial_elsewhere_and_the_callers_stays(took: Callable[[float], None]) -> None:
    seen: list[list[float]] = []
    total, x = torch.full((4,), 7.0)[1:3], torch.ones(2)

    @autotune([Config({"fast": step}) for step in range(2)], key=["n"], objective="kernel", reset_to_zero=["total"])
    def run(total: Any, x: Any, n: int, *, fast: int) -> None:
        seen.append(total.tolist())
        total.add_(x)
        took((1000.0, 960.0)[fast])

    with autotuned.mode("search"):
        run(total, x, 4)
    assert all(one == [0.0, 0.0] for one in seen) and len(seen) > 2 * duels.PLACES * race.FIRST_SAMPLES
    assert total.tolist() == [1.0, 1.0] and x.tolist() == [1.0, 1.0]
    assert torch.as_strided(total, (4,), (1,), 0).tolist() == [7.0, 1.0, 1.0, 7.0]


def test_hooks_keep_the_duel_where_it_is(took: Callable[[float], None]) -> None:
    kernel = Places(1.04, 0.97, took)
    hooked = [Config({"fast": 0}), Config({"fast": 1}, pre_hook=lambda arguments: None)]
    moved = autotune(hooked, key=["n"], objective="kernel")(kernel.run.fn)
    with autotuned.mode("search"):
        moved(kernel.x, kernel.out, 4)
    assert len(kernel.starts) == 1


def duelled(
    took: Callable[[float], None], share: float, seed: int, lead: float = 0.008, knows_race: bool = False
) -> tuple[int, list[int]]:
    """The config that is chosen where one is faster by `lead` under noise, and how often each copy was launched on."""
    noise, starts, x = random.Random(seed), Counter[int](), torch.zeros(4)

    @autotune([Config({"fast": 0}), Config({"fast": 1})], key=["n"], objective="kernel", restore_value=["x"])
    def run(x: Any, n: int, *, fast: int) -> None:
        starts[x.data_ptr()] += 1
        took(100 / (1 + lead * fast) * (1 + noise.gauss(0, 0.014)))

    with pytest.MonkeyPatch.context() as patch, autotuned.mode("search"):
        patch.setattr(duels, "SHARE", share)
        if not knows_race:
            patch.setattr(duels.Duel, "_race", None)
        run(x, 4)
    del starts[x.data_ptr()]
    return int(run.best_config.kwargs["fast"]), list(starts.values())


def test_a_duel_that_is_not_sure_goes_on_for_a_small_part_of_the_search(took: Callable[[float], None]) -> None:
    short, long = ([duelled(took, share, seed) for seed in range(12)] for share in (0.0, 1e4))
    once = [2 * race.FIRST_SAMPLES] * duels.PLACES
    of_short, of_long = ([counts for _, counts in found if counts] for found in (short, long))  # else five pairs tell
    assert of_short == [once] * len(of_short) and len(of_short) > 6
    assert all(len(set(counts)) == 1 and counts >= once for counts in of_long) and of_long != of_short
    assert sum(fast for fast, _ in long) >= 11 > sum(fast for fast, _ in short)
    assert not any(duelled(took, 1e4, seed, lead=-0.008)[0] for seed in range(12))


def test_what_the_race_measured_counts_for_the_callers_tensors(took: Callable[[float], None]) -> None:
    assert sum(duelled(took, 0.0, seed, knows_race=True)[0] for seed in range(12)) >= 11
    assert not any(duelled(took, 0.0, seed, lead=-0.008, knows_race=True)[0] for seed in range(12))


def test_a_first_round_at_all_places_takes_no_more_samples_than_a_duel_at_one() -> None:
    assert duels.ROUND + race.FIRST_SAMPLES * duels.PLACES <= duels.MOST_PAIRS
