"""What a companion process leaves in the store: a newer choice for a call that this process makes."""

import json

from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord


def store_choice(tuned, config, *args, grid=None, **kwargs):
    """Store a record in which `config` is the fastest of the kernel's configs for a call; its key."""
    tuner = tuned.tuner
    key = tuner.chooser.key(tuner.call(args, kwargs, grid))
    identity = tuner.chooser.state.identity
    times = {identity(one): 2.0 for one in tuner.options.configs()} | {identity(config): 1.0}
    timings = tuple(Timing(json.loads(name), us, us, us, 9) for name, us in times.items())
    default = tuner.options.default  # which has raced it
    provenance = {} if default is None else {"default": json.loads(identity(default))}
    assert records.keep(TuningRecord(key, json.loads(identity(config)), 1.0, "ok", timings, provenance))
    return key
