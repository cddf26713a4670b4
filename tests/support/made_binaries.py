"""Handmade files of binaries: variants of one kernel with arbitrary bytes as machine code."""

import hashlib

from autotuned.binaries.file import BinaryFile
from autotuned.binaries.variant import Code, Form, Variant

OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True,
           "launch_cooperative_grid": False, "launch_pdl": False}  # fmt: skip
METADATA = {"name": "add", "shared": 0, "global_scratch_size": 0, "global_scratch_align": 1}


def code(arch=90, source="s", interface="i", environment=None):
    return Code(source, None, environment or {}, interface, arch)


def form(n="i32", s="=1", aligned=("x_ptr",), block=32, options=OPTIONS):
    types = (("x_ptr", "*fp32"), ("n", n), ("s", s), ("BLOCK", "constexpr"))
    return Form(types, dict.fromkeys(aligned, '[["tt.divisibility",16]]'), {"BLOCK": block}, options)


def variant(machine=b"\x7fELF one", **parts):
    where = parts.pop("code", code())
    return Variant("app.add", "3.9.0", where, form(**parts), METADATA, hashlib.sha256(machine).hexdigest()), machine


def file(*made):
    found = BinaryFile("app.add")
    for one in made or (variant(), variant(b"\x7fELF two", block=64), variant(b"\x7fELF one", block=128)):
        found.add(*one)
    return found


def ship(folder, made=None, named=None, kernel="app.k"):
    """A config file with one entry, and its binaries; `named` are the digests in the entry."""
    from fakes import DEVICE, FakeConfig, make_key
    from fakes import form as config_form

    from autotuned.binaries import writer as binaries
    from autotuned.configfiles import writer
    from autotuned.configfiles.file import ConfigFile, Entry, split_context
    from autotuned.gpu.device import from_json

    made = [(one.replace(kernel=kernel), machine) for one, machine in ([variant()] if made is None else made)]
    key = make_key(kernel=kernel)
    config = ConfigFile(kernel, from_json(DEVICE))
    digests = [one.digest for one, _ in made] if named is None else named
    entry = Entry(key.call, config_form(FakeConfig({"BLOCK": 64})), 10.0, 1.5).with_binaries(digests)
    config.add(split_context(key.context)[0], entry)
    path = writer.write(config, folder)
    found = BinaryFile(kernel)
    for one, machine in made:
        found.add(one, machine)
    binaries.binaries_path(path, kernel).write_bytes(found.dump())
    return path
