"""Every mode against every place where a choice may be: which config, how many benchmarks, what is written."""

import logging
import threading

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import ship

import autotuned
from autotuned import autotune, disk
from autotuned.errors import NotTunedError
from autotuned.resolve import sources
from autotuned.store import listing, records

FIRST, BEST, DEFAULT = CONFIGS = [Config({"step": step}) for step in (8, 16, 32)]
TIMES = {8: 3.0, 16: 1.0, 32: 2.0}


class Last:
    step = 0


LAST = Last()


def scale(x, n, *, step):
    LAST.step = step
    x *= 0.5


def bench(call, quantiles):
    call()
    bench.calls += 1
    return [TIMES[LAST.step]] * 3


def make(**options):
    return autotune(CONFIGS, **({"do_bench": bench} | options))(scale)


@pytest.fixture(autouse=True)
def count():
    bench.calls = 0


@pytest.fixture
def written(monkeypatch):
    """The records that were written, in order."""
    kept = []
    keep = records.keep
    monkeypatch.setattr(records, "keep", lambda record: kept.append(record) or keep(record))
    return kept


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return lambda: [record.getMessage() for record in caplog.records]


def call(function, n=50):
    """Calls and returns the step that ran."""
    x = np.ones(n)
    function(x, n)
    assert (x == 0.5).all()
    return LAST.step


# What is known beforehand, and what each mode makes of it: the step that runs, benchmarks, records written.
NOT_TUNED = None
SEARCHED = (16, 3, 1)
TABLE = {
    "memory": {"auto": (16, 0, 0), "serve": (16, 0, 0), "strict": (16, 0, 0), "search": (16, 0, 0), "off": (8, 0, 0)},
    "disk": {"auto": (16, 0, 0), "serve": (16, 0, 0), "strict": (16, 0, 0), "search": SEARCHED, "off": (8, 0, 0)},
    "file": {"auto": (16, 0, 0), "serve": (16, 0, 0), "strict": (16, 0, 0), "search": SEARCHED, "off": (8, 0, 0)},
    "default": {"auto": (32, 0, 0), "serve": (32, 0, 0), "strict": NOT_TUNED, "search": SEARCHED, "off": (32, 0, 0)},
    "nothing": {"auto": SEARCHED, "serve": (8, 0, 0), "strict": NOT_TUNED, "search": SEARCHED, "off": (8, 0, 0)},
    "disk-and-default": {
        "auto": (16, 0, 0), "serve": (16, 0, 0), "strict": (16, 0, 0), "search": SEARCHED, "off": (32, 0, 0),
    },
    "file-and-default": {
        "auto": (16, 0, 0), "serve": (16, 0, 0), "strict": (16, 0, 0), "search": SEARCHED, "off": (32, 0, 0),
    },
}  # fmt: skip
CASES = [(known, mode) for known, row in TABLE.items() for mode in row]


def prepared(known, monkeypatch, tmp_path):
    """A function before its first call in the mode under test, with this much known."""
    options = {"default": DEFAULT} if "default" in known else {}
    if known in ("default", "nothing"):
        return make(**options)
    first = make()
    call(first)
    if known.startswith("file"):
        ship(tmp_path / "shipped", monkeypatch)
    return first if known == "memory" else make(**options)


@pytest.mark.parametrize("how", ["environment", "with"])
@pytest.mark.parametrize(("known", "mode"), CASES, ids=["-".join(case) for case in CASES])
def test_truth_table(known, mode, how, written, monkeypatch, tmp_path):
    function = prepared(known, monkeypatch, tmp_path)
    bench.calls = 0
    written.clear()
    if how == "environment":
        monkeypatch.setenv("AUTOTUNED_MODE", mode)
        function.cache_clear() if known != "memory" else function.tuner.launcher.clear()
        outcome = twice(function)
    else:
        with autotuned.mode(mode):
            outcome = twice(function)
    assert outcome == TABLE[known][mode]
    if outcome is not NOT_TUNED:
        assert len(written) == outcome[2]
    if outcome == SEARCHED:
        assert [timing.config["kwargs"]["step"] for timing in written[0].timings] == [8, 16, 32]
        assert written[0].winner["kwargs"] == {"step": 16}
        assert written[0].median_us == 1000.0


def twice(function):
    try:
        first = call(function)
    except NotTunedError:
        with pytest.raises(NotTunedError):
            call(function)
        assert bench.calls == 0
        return NOT_TUNED
    count = bench.calls
    assert call(function) == first
    assert bench.calls == count
    assert function.cache_info().hits >= 1
    return first, count, 1 if count else 0


def test_the_users_record_goes_before_a_shipped_file(monkeypatch, tmp_path):
    call(make())
    ship(tmp_path / "shipped", monkeypatch)
    monkeypatch.setitem(TIMES, 8, 0.5)
    with autotuned.mode("search"):
        assert call(make()) == 8
    assert call(make()) == 8
    listing.clear()
    assert call(make()) == 16  # what was shipped


def test_a_shipped_choice_that_is_no_config_any_more_is_not_used(monkeypatch, tmp_path, lines):
    call(make())
    ship(tmp_path / "shipped", monkeypatch)
    bench.calls = 0
    function = autotune([FIRST, DEFAULT], do_bench=bench)(scale)
    assert call(function) == 32
    assert bench.calls == 2
    (line,) = lines()
    assert "the config for this call is no longer among the kernel's configs" in line


# -- auto ------------------------------------------------------------------------------------------------------------


def test_a_default_may_be_a_callable_of_the_arguments():
    def default(x, n):
        return Config({"step": n // 2})

    function = make(default=default)
    for n in (50, 64, 50):
        assert call(function, n) == n // 2
    assert bench.calls == 0


def test_a_default_is_not_stored(written):
    function = make(default=DEFAULT)
    call(function)
    assert written == []
    assert list(listing.all_records()) == []


def test_one_config_is_never_searched_in_any_mode(written):
    for mode in ("auto", "serve", "strict", "search", "off"):
        function = autotune([BEST], do_bench=bench)(scale)
        with autotuned.mode(mode):
            assert call(function) == 16
    assert bench.calls == 0
    assert written == []


# -- serve -----------------------------------------------------------------------------------------------------------


def test_serve_says_one_line_a_key_and_warns_of_the_first(caplog, lines):
    caplog.set_level(logging.INFO, "autotuned")
    function = make()
    with autotuned.mode("serve"):
        for n in (50, 60, 50, 60):
            assert call(function, n) == 8
    with autotuned.mode("serve"):  # nothing is bound any more, and still nothing new to say
        call(function, 50)
    assert len(lines()) == 2
    for line in lines():
        assert "scale`: nothing is stored for key " in line
        assert "mode 'serve' runs it untuned" in line
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_serve_with_a_default_says_its_line_too(lines):
    function = make(default=DEFAULT)
    with autotuned.mode("serve"):
        assert call(function) == 32
    (line,) = lines()
    assert "nothing is stored for key" in line


def test_serve_says_nothing_of_what_is_stored(lines):
    call(make())
    with autotuned.mode("serve"):
        call(make())
    assert lines() == []


def test_serve_takes_what_is_measured_of_a_grown_list():
    call(make())
    grown = autotune([*CONFIGS, Config({"step": 64})], do_bench=bench)(scale)
    bench.calls = 0
    with autotuned.mode("serve"):
        assert call(grown) == 16
    assert bench.calls == 0


# -- strict ----------------------------------------------------------------------------------------------------------


def test_strict_names_the_nearest_key_and_what_differs():
    function = make(key=["n"])
    for n in (50, 60):
        call(function, n)
    near = {record.key.call["values"]["n"]: record.key.digest for _, record in listing.all_records()}
    with autotuned.mode("strict"), pytest.raises(NotTunedError) as caught:
        function(np.ones(50, np.float32), 50)
    text = str(caught.value)
    assert f"expected a tuned choice for key {caught.value.digest[:12]}, found none" in text
    assert "mode 'strict' allows no search" in text
    assert f"the nearest stored key {near[50][:12]} differs in " in text
    assert "tensors.x.dtype: 'float32' here, 'float64' there" in text
    assert text.count(" here, ") == 1  # and in nothing else
    assert "`autotuned tune`" in text
    assert caught.value.kernel.endswith("test_modes.scale")


def test_strict_counts_shipped_keys_as_near(monkeypatch, tmp_path):
    call(make())
    ship(tmp_path / "shipped", monkeypatch)
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="n: 60 here, 50 there"):
        call(make(key=None), 60)


def test_strict_where_nothing_is_stored():
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="no key of this kernel is stored"):
        call(make())


# -- search ----------------------------------------------------------------------------------------------------------


def test_search_searches_once_a_key_and_process():
    call(make())
    bench.calls = 0
    with autotuned.mode("search"):
        function = make()
        for n in (50, 60, 50, 60):
            call(function, n)
        assert bench.calls == 6
    with autotuned.mode("search"):
        call(function)
        assert bench.calls == 6
        call(make())  # as in another process
        assert bench.calls == 9


def test_search_replaces_what_is_stored(monkeypatch):
    call(make())
    monkeypatch.setitem(TIMES, 8, 0.5)
    assert call(make()) == 16
    with autotuned.mode("search"):
        assert call(make()) == 8
    assert call(make()) == 8
    ((_, record),) = listing.all_records()
    assert record.median_us == 500.0


# -- off -------------------------------------------------------------------------------------------------------------


def test_off_reads_and_writes_nothing(monkeypatch):
    folder = disk.cache_dir(autotuned.env.cache_dir_setting())

    def refuse(*args, **kwargs):
        raise AssertionError("the store was used")

    monkeypatch.setattr(sources, "find", refuse)
    for name in ("read", "keep", "locked"):
        monkeypatch.setattr(records, name, refuse)
    with autotuned.mode("off"):
        assert call(make()) == 8
        assert call(make(default=DEFAULT)) == 32
    assert not folder.exists()


# -- the switch itself -----------------------------------------------------------------------------------------------


def test_modes_nest_and_end():
    function = make()
    with autotuned.mode("off"):
        with autotuned.mode("search"):
            assert call(function) == 16
        assert call(function) == 8
        with autotuned.mode("serve"):
            assert call(function) == 16
    assert call(function) == 16


def test_with_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("AUTOTUNED_MODE", "off")
    function = make()
    assert call(function) == 8
    with autotuned.mode("auto"):
        assert call(function) == 16
    assert call(function) == 8


def test_a_mode_ends_with_an_exception():
    function = make()
    with pytest.raises(KeyError), autotuned.mode("off"):
        raise KeyError
    assert call(function) == 16


def test_a_mode_holds_on_other_threads():
    """Autograd runs backward kernels on threads of its own."""
    function, steps = make(), []
    with autotuned.mode("off"):
        thread = threading.Thread(target=lambda: steps.append(call(function)))
        thread.start()
        thread.join(10)
    assert steps == [8]


def test_the_mode_is_read_at_each_miss(monkeypatch):
    function = make()
    monkeypatch.setenv("AUTOTUNED_MODE", "Off ")
    assert call(function, 50) == 8
    monkeypatch.setenv("AUTOTUNED_MODE", "")
    assert call(function, 60) == 16
