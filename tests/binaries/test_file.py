"""The file of binaries: equal ones once, the same bytes for the same variants, and nothing of a damaged one is launched."""

import hashlib
import json
import random
import zlib

import pytest
from made_binaries import code, file, form, variant

from autotuned.binaries import file as binaryfile
from autotuned.binaries.file import BinaryFile
from autotuned.binaries.variant import check_metadata
from autotuned.errors import BinaryError, RecordError
from autotuned.typed_json import canonical


def index_of(content):
    """The index of a file, and what lies behind it."""
    line, _, rest = content.partition(b"\n")
    size = int(line.split()[2])
    return json.loads(zlib.decompress(rest[:size])), rest[size:]


def with_index(index, rest, text=None):
    """A file with another index, its sizes and hash in order."""
    stored = zlib.compress(text or json.dumps(index).encode())
    return f"autotuned-binaries 1 {len(stored)} {hashlib.sha256(stored).hexdigest()}\n".encode() + stored + rest


def test_what_was_written_is_read():
    made = file()
    read = binaryfile.read(made.dump(), "f")
    assert read.faults == [] and read.kernel == "app.add"
    assert {one.digest for one in read.variants} == {one.digest for one in made.variants}
    assert [read.code(one) for one in sorted(read.variants, key=lambda one: one.form.constants["BLOCK"])] == [
        b"\x7fELF one", b"\x7fELF two", b"\x7fELF one",
    ]  # fmt: skip
    assert read.dump() == made.dump()


def test_equal_code_is_kept_once_and_the_order_does_not_matter():
    made = [variant(b"\x7fELF" + bytes(9999), block=block) for block in (16, 32, 64)]
    content = file(*made).dump()
    assert content == file(*reversed(made)).dump()
    assert len(index_of(content)[0]["blobs"]) == 1


def test_a_file_takes_the_variants_of_another():
    read = binaryfile.read(file().dump(), "f")
    both = file(variant(b"\x7fELF three", block=256))
    for one in read.variants:
        both.take(one, read)
    assert {both.code(one) for one in both.variants} == {b"\x7fELF one", b"\x7fELF two", b"\x7fELF three"}
    assert both.keep([one.digest for one in read.variants]) == 1
    assert both.dump() == file().dump()


HEADS = {
    "empty": b"",
    "another kind of file": b"\x7fELF and so on",
    "a newer schema": b"autotuned-binaries 2 10 abc\n",
    "no hash": b"autotuned-binaries 1 10\n",
    "a size that is none": b"autotuned-binaries 1 ten abc\n",
    "no index": b"autotuned-binaries 1 0 " + hashlib.sha256(b"").hexdigest().encode() + b"\n",
    "cut": lambda: file().dump()[:150],
    "an index that inflates without end": lambda: with_index({}, b"", b"0" * (binaryfile.MOST_INDEX_BYTES + 1)),
    "an index that is no JSON": with_index({}, b"", b"{"),
    "an index nested too deeply": with_index({}, b"", b"[" * 5000),
    "an index of other fields": with_index({"kernel": "app.add"}, b""),
}


@pytest.mark.parametrize("kind", HEADS)
def test_what_cannot_be_used_at_all_is_one_clear_error(kind):
    content = HEADS[kind]() if callable(HEADS[kind]) else HEADS[kind]
    with pytest.raises(BinaryError, match=r"^binaries f: .*\. Rebuild them: autotuned export --binaries\.$"):
        binaryfile.read(content, "f")


def test_a_file_cut_within_its_first_line_is_said_to_be_truncated():
    with pytest.raises(BinaryError, match="no end of it: the file is truncated"):
        binaryfile.read(file().dump()[:40], "f")


def lying(change):
    index, rest = index_of(file().dump())
    change(index)
    return binaryfile.read(with_index(index, rest), "f")


def set_blobs(index, place):
    index["blobs"] = dict.fromkeys(index["blobs"], place)


LIES = {
    "an offset behind the end": lambda index: set_blobs(index, [1 << 40, 10, 10]),
    "a negative offset": lambda index: set_blobs(index, [-1, 10, 10]),
    "more bytes than there are": lambda index: set_blobs(index, [0, 1 << 20, 10]),
    "a size that is a text": lambda index: set_blobs(index, [0, "10", 10]),
    "a row of other fields": lambda index: index["variants"].__setitem__(slice(None), [[1, 2]] * 3),
    "a number of no context": lambda index: [row.__setitem__(0, 7) for row in index["variants"]],
    "a type that is no text": lambda index: [row[3].__setitem__(0, ["x", 32]) for row in index["variants"]],
    "a negative shared memory": lambda index: index["metadata"][0].update(shared=-1),
    "no name of a function": lambda index: index["metadata"][0].pop("name"),
    "an architecture that is none": lambda index: index["codes"][0].update(arch="sm_90"),
    "code that is not there": lambda index: [row.__setitem__(7, "0" * 64) for row in index["variants"]],
}


@pytest.mark.parametrize("kind", LIES)
def test_an_index_that_lies_costs_its_variants_and_says_so(kind):
    read = lying(LIES[kind])
    assert read.variants == [] and len(read.faults) >= 3


@pytest.mark.parametrize("size", [3, 9, 1 << 30])
def test_machine_code_that_inflates_to_another_size_is_refused(size):
    index, rest = index_of(file().dump())
    index["blobs"] = {name: [at, stored, size] for name, (at, stored, _) in index["blobs"].items()}
    read = binaryfile.read(with_index(index, rest), "f")
    for one in read.variants:
        if size < len(b"\x7fELF one") or not read.stored(one.blob):
            with pytest.raises(BinaryError, match="expected content that matches its hash"):
                read.code(one)
    assert size != 1 << 30 or read.variants == []


def test_swapped_machine_code_is_refused():
    index, rest = index_of(file().dump())
    (one, place), (other, there) = index["blobs"].items()
    index["blobs"] = {one: there, other: place}
    read = binaryfile.read(with_index(index, rest), "f")
    for each in read.variants:
        with pytest.raises(BinaryError, match="expected content that matches its hash"):
            read.code(each)


def mutated(content, rng):
    """The content with bytes changed, cut out, put in or swapped; half of the time with its hash set right again."""
    if rng.random() < 0.5:
        index, rest = index_of(content)
        text = bytearray(json.dumps(index).encode())
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.choice(b'0123456789"[]{},:abcx')
        return with_index(index, rest, bytes(text))
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(changed)), rng.randrange(4)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 40)]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 9))
        else:
            changed = changed[at:] + changed[:at]
        changed = changed or bytearray(b"x")
    return bytes(changed)


def test_an_index_that_gives_a_name_twice_is_refused():
    index, rest = index_of(file().dump())
    text = canonical(index)
    read = binaryfile.read(with_index(index, rest, text.encode()), "f")
    assert {one.digest for one in read.variants} == {one.digest for one in file().variants}
    twice = text.replace('"kernel":', '"kernel":"other","kernel":', 1)
    with pytest.raises(BinaryError, match="got .kernel. twice"):
        binaryfile.read(with_index(index, rest, twice.encode()), "f")


def test_a_thousand_mutations_launch_nothing_that_was_not_written():
    """What is left of a damaged file, and named by an entry, is what was written: the same launch of the same code."""
    made = file()
    content, allowed = made.dump(), {one.digest: one for one in made.variants}
    rng, whole, refused = random.Random(21), 0, 0
    for _ in range(1000):
        try:
            read = binaryfile.read(mutated(content, rng), "f")
        except BinaryError as error:
            refused += 1
            assert str(error).startswith("binaries f: ")
            continue
        asked = [(one.code, one.form) for one in made.variants]
        first, later = ([one.digest for one in read.serving(*what)] for what in (asked[0], asked[-1]))
        assert read.variants is not None  # which checks all of them
        assert [[one.digest for one in read.serving(*what)] for what in (asked[0], asked[-1])] == [first, later]
        for one in read.variants:
            if one.digest not in allowed:
                continue
            assert one.to_json() == allowed[one.digest].to_json()
            try:
                assert hashlib.sha256(read.code(one)).hexdigest() == one.blob
                whole += 1
            except BinaryError as error:
                assert "expected content that matches its hash" in str(error)
    assert refused > 100 and whole > 100  # both were met


def test_twenty_thousand_variants_are_read():
    one, machine = variant()
    index, _ = index_of(file((one, machine)).dump())
    _, rest = index_of(file((one, machine)).dump())
    row = index["variants"][0]
    index["variants"] = [[*row[:5], {"BLOCK": number}, *row[6:]] for number in range(20_000)]
    read = binaryfile.read(with_index(index, rest), "f")
    assert len(read.variants) == 20_000 and read.faults == []
    [found] = read.serving(code(), form(block=17_777))
    assert found.form.constants == {"BLOCK": 17_777}


def damaged(made):
    """A file whose machine code is there and wrong."""
    content = made.dump()
    return binaryfile.read(content[:-4] + b"xxxx", "f")


def test_code_that_is_put_in_again_replaces_what_is_damaged():
    one, code_of_one = variant()
    broken = damaged(file((one, code_of_one)))
    assert not broken.is_whole(one)
    broken.add(one, code_of_one)
    assert broken.code(one) == code_of_one and len(broken.variants) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_copies_the_whole_one_is_taken(order):
    one, code_of_one = variant()
    whole = file((one, code_of_one))
    together = BinaryFile("app.add")
    for source in (damaged(whole), whole)[::order]:
        together.take(one, source)
    assert together.code(one) == code_of_one and len(together.variants) == 1


def test_putting_in_looks_at_each_variant_once(monkeypatch):
    one, machine = variant()
    many = [one.replace(form=one.form.replace(constants={"BLOCK": number})) for number in range(200)]
    asked = []
    digest = type(one).digest.func
    monkeypatch.setattr(type(one), "digest", property(lambda self: asked.append(1) or digest(self)))
    made = BinaryFile("app.add")
    for each in many + many:
        made.add(each, machine)
    assert len(made.variants) == 200 and len(asked) <= 2 * len(many)


UNFIT = {
    "class": 1, "_x": 1, "not a name": 1, "name": "\ud800", "num_ctas": 10**9, "num_warps": "4", "launch_pdl": "yes",
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_metadata_that_no_launch_can_be_made_of_is_refused(name):
    with pytest.raises(RecordError, match="expected"):
        check_metadata({"name": "add", "shared": 0, name: UNFIT[name]}, "metadata")


# -- which calls one serves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "call", "serves"),
    [
        ({}, {}, True),
        ({"aligned": ()}, {}, True),  # assumes less
        ({}, {"aligned": ()}, False),
        ({"s": "i32"}, {}, False),  # to Triton an integer that is 1 is no integer of 32 bits
        ({}, {"s": "i32"}, False),
        ({"n": "i64"}, {}, False),  # products of 32 bits wrap
        ({"n": "i64"}, {"n": "u64"}, False),
        ({"n": "i32"}, {"n": "i64"}, False),
        ({"n": "i32"}, {"n": "u1"}, False),
        ({"n": "i32"}, {"n": "fp32"}, False),
        ({"s": "i32"}, {"s": "=None"}, False),
        ({"s": "i32", "aligned": ("x_ptr", "s")}, {}, False),  # divisible by 16, and 1 is not
        ({"block": 64}, {}, False),
        ({"options": {"num_warps": 8}}, {}, False),
    ],
)
def test_a_binary_serves_what_it_assumes_no_more_of(made, call, serves):
    assert form(**made).serves(form(**call)) is serves
    assert bool(form(**made).why_not(form(**call))) is not serves


def test_the_difference_is_said_in_words():
    assert form().why_not(form(aligned=())) == "`x_ptr`: address not divisible by 16; compiled were: divisible"
    assert form().why_not(form(block=64)) == "`BLOCK`: 64; compiled were: 32"
    assert form().why_not(form(s="i32")) == "`s`: i32; compiled were: an integer that is 1"


def test_any_other_part_makes_another_digest():
    digests = [
        variant(**parts)[0].digest
        for parts in ({}, {"code": code(arch=100)}, {"code": code(source="t")}, {"code": code(interface="j")},
                      {"code": code(environment={"A": "1"})}, {"machine": b"\x7fELF two"}, {"aligned": ()}, {"n": "i64"})
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
