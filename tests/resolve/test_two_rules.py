"""Rules of two folders for calls of one kind: what is bound for one is never taken for the other's."""

import shutil

from fakes import FakeConfig

import autotuned
from autotuned.store import layout, listing, records
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable import configs

SMALL, RAGGED, LARGE = (FakeConfig({"step": step}) for step in (64, 128, 256))
CONFIGS = [RAGGED, SMALL, LARGE]


def kernel(**more):
    @autotuned.autotune(
        CONFIGS, name="two.f", key=["M", "N"], nearest=autotuned.within("5%"), default=LARGE, do_bench=lambda *a, **k: 1.0,
        **more,
    )  # fmt: skip
    def f(x, M, N, *, step=0):
        return step

    return f


def shipped(f, folder, sizes, best, **more):
    """A folder with a rule: aligned calls have one config, the others `RAGGED`; the store is empty."""
    forms = {config: configs.to_json(config, "two.f") for config in CONFIGS}
    for m in sizes:
        won = best if m % 64 == 0 else RAGGED
        timings = tuple(Timing(form, *[10.0 if one is won else 15.0] * 3, 5) for one, form in forms.items())
        key = f.tuner.chooser.key(f.tuner.call((None, m, 512), {}, None))
        records.keep(TuningRecord(key, forms[won], 10.0, "ok", timings, {"default": forms[LARGE]}, **more))
    autotuned.export(folder / "exported")
    result = autotuned.compress(folder / "exported", within="5%", out=folder / "few")
    assert [fit.why_not for one in result.kernels for fit in one.fits] == [""]
    shutil.rmtree(layout.root())
    listing.clear()
    return folder / "few"


def served(f, m):
    f(None, m, 512)
    return f.best_config


def test_each_call_has_the_config_of_its_own_rule(tmp_path):
    f = kernel()
    one = shipped(f, tmp_path / "one", [16 * i for i in range(1, 81) if i % 5] + [17], SMALL)
    two = shipped(f, tmp_path / "two", [16 * round(82 * 1.05**i) for i in range(96)] + [1313], LARGE)
    autotuned.register_configs(one)
    autotuned.register_configs(two)
    for m, config in ((320, SMALL), (1536, LARGE), (640, SMALL), (960, SMALL), (3200, LARGE), (641, RAGGED)):
        assert served(f, m) is config, m


def test_a_rule_that_was_measured_under_less_never_serves(tmp_path):
    """Neither at first nor once another rule's calls are bound."""
    f = kernel(restore_value=["x"])
    wide = shipped(f, tmp_path / "wide", [16 * i for i in range(1, 801, 3)] + [17], SMALL, conditions=Conditions(()))
    narrow = shipped(f, tmp_path / "narrow", [32 * i + 1 for i in range(1, 80)], SMALL, conditions=Conditions(("x",)))
    autotuned.register_configs(wide)
    autotuned.register_configs(narrow)
    assert [served(f, m) for m in (5001, 641, 5003, 5005, 707)] == [LARGE, RAGGED, LARGE, LARGE, RAGGED]
