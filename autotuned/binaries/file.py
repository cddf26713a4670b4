"""The file of compiled kernels next to a config file: a typed index, and machine code by content. It runs no code.

The first line has the schema and sizes; then follow the index (zlib-compressed JSON) and the compressed blobs. Values
that several variants share are in the index once.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned._startup import Frozen, once
from autotuned.binaries.variant import Code, Form, Types, Variant, check_launch, check_metadata
from autotuned.errors import BinaryError
from autotuned.typed_json import Json, Told, canonical, has_names_once, integer, named, typed

SCHEMA = 1
SUFFIX = ".bin"
_MAGIC = "autotuned-binaries"
HEAD = 200  # bytes in which the first line must end
MOST_INDEX_BYTES, MOST_BLOB_BYTES = 64 << 20, 64 << 20
_SHARED = ("codes", "options", "metadata")  # shared by variants: once in the index


def name_of(kernel: str) -> str:
    """The file name of a kernel: the config file's with another suffix."""
    return f"{disk.file_stem(kernel)}{SUFFIX}"


class Blob(Frozen):
    """Machine code behind the index: `stored` bytes compressed, `size` bytes inflated."""

    offset: int
    stored: int
    size: int


class BinaryFile:
    """The variants of one kernel on one kind of device, their machine code, and the `faults` that reading skipped.

    Variants read from a file are checked when a call may need them, or together once something asks for all.
    """

    def __init__(self, kernel: str, path: str = "") -> None:
        self.kernel, self.path = kernel, path
        self._variants: list[Variant] = []
        self._faults: list[str] = []
        self._unread: _Reader | None = None
        self._compressed: dict[str, tuple[bytes, int]] = {}  # with the inflated size, by SHA-256 of the inflated code
        self._reader: _Reader | None = None  # reads blobs from the file on demand
        self._by_form: dict[tuple[str, str], list[Variant]] | None = None
        self._places: dict[str, int] = {}  # digest -> index in `variants`, built by `_put`
        self._whole: set[str] = set()  # added code that matches its hash

    @property
    def variants(self) -> list[Variant]:
        """All variants."""
        self._complete()
        return self._variants

    @variants.setter
    def variants(self, variants: list[Variant]) -> None:
        self._complete()
        self._variants = variants

    @property
    def faults(self) -> list[str]:
        """What was skipped, and why."""
        self._complete()
        return self._faults

    def _complete(self) -> None:
        if (unread := self._unread) is not None:
            self._variants, self._faults = unread.read()
            self._unread = None

    def add(self, variant: Variant, code: bytes) -> None:
        """Add a variant with its machine code; equal code is kept once and replaces damaged code."""
        self._put(variant)
        if variant.blob not in self._whole:
            self._whole.add(variant.blob)
            self._compressed[variant.blob] = zlib.compress(code, 9), len(code)

    def take(self, variant: Variant, other: BinaryFile) -> None:
        """Add a variant of another file without inflating its code; intact code replaces damaged code."""
        self._put(variant)
        blob = variant.blob
        if blob in self._whole:
            return
        if is_whole := other.is_whole(variant):
            self._whole.add(blob)
        if is_whole or blob not in self._compressed:
            self._compressed[blob] = other.stored(blob), other.size(blob)

    def _put(self, variant: Variant) -> None:
        self._by_form = None
        if len(self._places) != len(self.variants):
            self.variants = list({one.digest: one for one in self.variants}.values())
            self._places = {one.digest: place for place, one in enumerate(self.variants)}
        place = self._places.setdefault(variant.digest, len(self.variants))
        self.variants[place : place + 1] = [variant]

    def is_whole(self, variant: Variant) -> bool:
        """Whether a variant's machine code is present and matches its hash."""
        try:
            return bool(self.code(variant))
        except BinaryError:
            return False

    def keep(self, digests: Iterable[str]) -> int:
        """Keep only these variants; returns how many were dropped."""
        wanted = frozenset(digests)
        left = [variant for variant in self.variants if variant.digest in wanted]
        gone, self.variants, self._by_form, self._places = len(self.variants) - len(left), left, None, {}
        return gone

    def serving(self, code: Code, form: Form) -> Iterator[Variant]:
        """The variants of this code for a call of this form, the most specialized first.

        Checks only those that are needed; all of them if none of these serves, or one is faulty.
        """
        unread, found = self._unread, False  # read once: another thread may complete it
        try:
            for one in unread.serving(code, form) if unread is not None else ():
                found = True
                yield one
        except (ValueError, TypeError, KeyError, IndexError):
            found = False
        if not found:
            yield from (one for one in self._matching(code, form.fixed) if one.form.serves(form))

    def _matching(self, code: Code, fixed: str) -> list[Variant]:
        """The variants of this code with these constants and options, the most specialized first."""
        if self._by_form is None:
            found: dict[tuple[str, str], list[Variant]] = {}
            for variant in sorted(self.variants, key=lambda variant: variant.form.rank):
                found.setdefault((variant.code.text, variant.form.fixed), []).append(variant)
            self._by_form = found
        return self._by_form.get((code.text, fixed), [])

    def stored(self, blob: str) -> bytes:
        """Machine code as stored, compressed; empty if missing."""
        return self._place(blob)[0]

    def size(self, blob: str) -> int:
        """Bytes of inflated machine code; 0 if missing."""
        return self._place(blob)[1]

    def _place(self, blob: str) -> tuple[bytes, int]:
        if blob in self._compressed:
            return self._compressed[blob]
        reader, place = self._reader, None if self._reader is None else self._reader.blob(blob)
        return (b"", 0) if reader is None or place is None else (reader.stored(place), place.size)

    def code(self, variant: Variant) -> bytes:
        """A variant's machine code; BinaryError if it is missing, truncated or does not match its hash."""
        stored, size = self._place(variant.blob)
        try:
            code = disk.inflate(stored, size) if stored else b""
        except ValueError:
            code = b""
        if hashlib.sha256(code).hexdigest() != variant.blob:
            raise BinaryError(
                f"machine code {variant.blob[:12]}: expected content that matches its hash, got {len(code)} other "
                "bytes. Rebuild it: autotuned export --binaries.",
                path="",
            )
        return code

    # -- writing ---------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The file's content; equal variants give equal bytes in any order of adding."""
        variants = sorted(self.variants, key=lambda variant: variant.digest)
        blobs = {name: self.stored(name) for name in sorted({variant.blob for variant in variants})}
        shared: dict[str, dict[str, int]] = {name: {} for name in _SHARED}
        rows = [_row(variant, shared) for variant in variants]
        places, at = {}, 0
        for name, stored in blobs.items():
            places[name] = [at, len(stored), self.size(name)]
            at += len(stored)
        index = {
            "kernel": self.kernel, "variants": rows, "blobs": places,
            **{name: [disk.parse_json(text) for text in texts] for name, texts in shared.items()},
        }  # fmt: skip
        text = zlib.compress(canonical(index).encode(), 9)
        head = f"{_MAGIC} {SCHEMA} {len(text)} {hashlib.sha256(text).hexdigest()}\n".encode()
        return head + text + b"".join(blobs.values())


def _row(variant: Variant, shared: Mapping[str, dict[str, int]]) -> list[Json]:
    form = variant.form
    texts = canonical(variant.code.fields()), canonical(form.options), canonical(dict(variant.metadata))
    numbers = [known.setdefault(text, len(known)) for known, text in zip(shared.values(), texts)]
    types = [list(pair) for pair in form.types]
    return [*numbers, types, dict(form.assumes), form.constants, variant.triton, variant.blob]


# -- reading -----------------------------------------------------------------------------------------------------------


def read(content: bytes, path: str) -> BinaryFile:
    """The usable part of a file, with its `faults`; BinaryError if nothing is usable, or the schema is newer."""
    try:
        return _read(content, path)
    except (ValueError, TypeError, RecursionError) as error:
        raise BinaryError(f"binaries {path}: {_words(error)} Rebuild them: autotuned export --binaries.",
                          path=path) from error  # fmt: skip


def is_ours(head: bytes) -> bool:
    """Whether a file with this head holds binaries."""
    return head.startswith(f"{_MAGIC} ".encode())


def is_newer(head: bytes) -> bool:
    """Whether a file with this head was written by a newer version of this package."""
    words = head.partition(b"\n")[0].decode("ascii", "replace").split(" ")
    return words[0] == _MAGIC and len(words) > 1 and words[1].isdecimal() and int(words[1]) > SCHEMA


def is_of_newer(path: Path) -> bool:
    """Whether a newer version of this package wrote a file, which must not be replaced."""
    try:
        return is_newer(disk.read_head(path, HEAD))
    except (OSError, ValueError):  # may be replaced
        return False


def _read(content: bytes, path: str) -> BinaryFile:
    line, found, _ = content[:HEAD].partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != _MAGIC or len(words) < 2 or not words[1].isdecimal():
        raise ValueError(f"expected a file that begins with {_MAGIC!r}, got {line[:40]!r}.")
    if not found:
        raise ValueError(f"expected a first line of at most {HEAD} bytes, got no end of it: the file is truncated.")
    if int(words[1]) != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, got {int(words[1])}: upgrade autotuned to read it.")
    if len(words) != 4 or not words[2].isdecimal():
        raise ValueError(f"expected the size and the hash of the index, got {line[:80]!r}.")
    begin = len(line) + 1
    stored = content[begin : begin + int(words[2])]
    if hashlib.sha256(stored).hexdigest() != words[3]:
        raise ValueError("expected an index that matches the hash in the first line, got another or a part of it.")
    index = named(_parsed(disk.inflate(stored, MOST_INDEX_BYTES)), "index", ("kernel", "variants", "blobs", *_SHARED))
    file = BinaryFile(typed(index["kernel"], str, "index.kernel"), path)
    file._reader = file._unread = _Reader(file.kernel, content, index, begin + len(stored))
    return file


def _parsed(content: bytes) -> Json:
    """The JSON of an index, sooner if it is as `dump` makes it and its text shows that no name is given twice."""
    text = disk.decoded(content)
    index = disk.parse_trusting(text)
    return index if has_names_once(text, _objects(index)) else disk.parse_json(text)


def _objects(index: Any) -> list[Any]:
    """The objects in an index that `dump` makes; others are of another layout."""
    try:
        codes, rows = index["codes"], index["variants"]
        objects = [index, index["blobs"], *codes, *index["options"], *index["metadata"]]
        return [*objects, *map(_ENVIRONMENT, codes), *chain.from_iterable(map(_OF_ROW, rows))]
    except (LookupError, TypeError):
        return []


_ENVIRONMENT, _OF_ROW = itemgetter("environment"), itemgetter(4, 5)  # what a call assumes, and its constants


class _Reader:
    """Reads and checks blobs and variants of an index."""

    def __init__(self, kernel: str, content: bytes, index: Mapping[str, Json], base: int) -> None:
        self._kernel, self._content, self._index, self._base = kernel, content, index, base
        self._places: Mapping[str, Json] = typed(index["blobs"], dict, "index.blobs")
        self._rows: list[Json] = typed(index["variants"], list, "index.variants")
        self._shared: dict[tuple[str, int], Any] = {}
        self._blobs: dict[str, Blob] = {}
        self._variants: dict[int, Variant] = {}

    def read(self) -> tuple[list[Variant], list[str]]:
        """All variants, and what was skipped."""
        variants, faults = [], []
        for name in self._places:
            try:
                self._known_blob(name)
            except (ValueError, TypeError, KeyError) as error:
                faults.append(f"blob {name[:12]} is left out: {_words(error)}")
        for number in range(len(self._rows)):
            try:
                variants.append(self._known_variant(number))
            except (ValueError, TypeError, KeyError) as error:
                faults.append(f"variant {number} is left out: {_words(error)}")
        return variants, faults

    def serving(self, code: Code, form: Form) -> Iterator[Variant]:
        """See `BinaryFile.serving`; raises at a faulty one."""
        constants, types, rows = form.constants, [*map(list, form.types)], self._rows
        for number in self._by_rank:
            if rows[number][5] == constants and rows[number][3] == types:
                one = self._variants.get(number) or self._known_variant(number, form.types)
                if one.code.text == code.text and one.form.serves(form):
                    yield one

    @once
    def _by_rank(self) -> list[int]:
        """The numbers of the rows, the most specialized first."""
        assumed = [*map(len, map(itemgetter(4), self._rows))]
        return sorted(range(len(assumed)), key=assumed.__getitem__, reverse=True)

    def blob(self, name: str) -> Blob | None:
        """The location of machine code; None if it is missing or faulty."""
        try:
            return self._blobs.get(name) or self._known_blob(name)
        except (ValueError, TypeError, KeyError):
            return None

    def stored(self, place: Blob) -> bytes:
        """The compressed machine code at a place."""
        return self._content[place.offset : place.offset + place.stored]

    def _known_blob(self, name: str) -> Blob:
        if name not in self._blobs:
            self._blobs[name] = self._blob(self._places[name], f"blobs.{name[:12]}")
        return self._blobs[name]

    def _known_variant(self, number: int, types: Types | None = None) -> Variant:
        """A variant; `types`, if they are known to be the row's."""
        if number not in self._variants:
            self._variants[number] = self._variant(self._rows[number], f"variants[{number}]", types)
        return self._variants[number]

    def _blob(self, place: Json, where: str) -> Blob:
        fields = typed(place, list, where)
        if len(fields) != 3:
            raise ValueError(f"{where}: expected an offset and two sizes, got {len(fields)} numbers.")
        left = len(self._content) - self._base
        offset = integer(fields[0], f"{where}.offset", 0, left)
        stored = integer(fields[1], f"{where}.stored", 1, MOST_BLOB_BYTES)
        if offset + stored > left:
            raise ValueError(f"{where}: expected {stored} bytes at {offset}, and there are {left} in all.")
        return Blob(self._base + offset, stored, integer(fields[2], f"{where}.size", 1, MOST_BLOB_BYTES))

    def _variant(self, row: Json, where: str, known: Types | None = None) -> Variant:
        fields = typed(row, list, where)
        if len(fields) != 8:
            raise ValueError(f"{where}: expected 8 fields, got {len(fields)}.")
        types, assumes, constants, triton, blob = fields[3:]
        code, options, metadata = [self._of(kind, number, where) for kind, number in zip(_SHARED, fields)]
        form = {"types": types, "assumes": assumes, "constants": constants, "options": options}
        if self.blob(typed(blob, str, f"{where}.blob")) is None:
            raise ValueError(f"{where}: expected machine code of the file, got {blob[:12]}, which is not in it.")
        compiled_by = typed(triton, str, f"{where}.triton")
        return Variant(self._kernel, compiled_by, code, Form.load(form, where, known), metadata, blob)

    def _of(self, kind: str, number: Json, where: str) -> Any:
        """A shared value, checked once."""
        place = kind, number
        if type(number) is not int or place not in self._shared:
            known = typed(self._index[kind], list, f"index.{kind}")
            place = kind, integer(number, f"{where}.{kind}", 0, len(known) - 1)
            self._shared[place] = _CHECKS[kind](known[place[1]], f"{kind}[{place[1]}]")
        return self._shared[place]


_CHECKS: Mapping[str, Callable[[Json, str], Any]] = {
    "codes": Code.load,
    "options": lambda data, where: Told(check_launch(data, where)),
    "metadata": lambda data, where: Told(check_metadata(data, where)),
}


def _words(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."
