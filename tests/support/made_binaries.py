"""Files of binaries made by hand: variants of one kernel whose machine code is any bytes."""

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
