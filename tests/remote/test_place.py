import pickle

import pytest
from fakes import FakeConfig, form, make_key

from autotuned import env
from autotuned.errors import OptionError, StoreError
from autotuned.remote.place import MAX_RECORD_BYTES, Place, place, record_name
from autotuned.store.record import Timing, TuningRecord

KEY = "a key of a fleet, not a secret"
SIGNED = place("redis://host/0", key=KEY)
KEPT = make_key()


def a_record(n: int = 1024) -> TuningRecord:
    config = form(FakeConfig({"BLOCK": 64}))
    return TuningRecord(make_key(n), config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:hush@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://me:p@ss/w#o!rd@host/0#team", "rediss://***@host/0#team"),
        ("rediss://me:p@ss/w?rd@host/0#team", "rediss://***"),
        ("redis://host/0?password=hush@hush", "redis://***"),
        ("redis://host/0?password=hush", "redis://host/0?***"),
        ("redis://host/0#team?password=hush", "redis://host/0#***"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("file:///mnt/shared", "file:///mnt/shared"),
        ("hush", "***"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert env.redacted(url) == shown


def test_the_namespace_is_an_option_or_follows_the_url_and_a_password_may_have_its_mark() -> None:
    assert (place("redis://host/0#team").url, place("redis://host/0#team").namespace) == ("redis://host/0", "team")
    assert place("redis://host/0#team", namespace="other").namespace == "other"
    assert place("redis://host/0").namespace == "default"
    assert place("redis://:p#w@host/0").url == "redis://:p#w@host/0"


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("host:6379", {}, "url"),
        ("redis://host/0#a*b", {}, "namespace"),
        ("redis://host/0", {"namespace": "../up"}, "namespace"),
        ("redis://host/0", {"key": "short"}, "key"),
        ("redis://host/0", {"wait_s": float("nan")}, "wait_s"),
        ("redis://host/0", {"lease_s": -1.0}, "lease_s"),
        ("redis://host/0", {"wait_s": "1"}, "wait_s"),
        ("redis://host/0", {"key": b"bytes of a good length"}, "key"),
        (b"redis://host/0", {}, "url"),  # as no type checker lets through
    ],
)
def test_what_cannot_be_is_refused_with_what_was_expected(url: str, options: dict[str, object], named: str) -> None:
    with pytest.raises(OptionError, match="expected .*, got ") as caught:
        place(url, **options)  # type: ignore[arg-type]
    assert caught.value.option == named
    assert pickle.loads(pickle.dumps(caught.value)).problem == caught.value.problem


def test_a_dash_stands_for_the_store_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of commands are seen by all users of a machine: a URL with a password need not be one."""
    monkeypatch.setenv("AUTOTUNED_STORE", "redis://me:hush@host:1/0#team")
    assert (place("-").url, place("-").namespace) == ("redis://me:hush@host:1/0", "team")
    monkeypatch.delenv("AUTOTUNED_STORE")
    with pytest.raises(OptionError, match="or file:///folder, got - for AUTOTUNED_STORE, which is not set"):
        place("-")


def test_what_is_signed_comes_back_under_its_name_alone() -> None:
    name, data = record_name(KEPT.digest), SIGNED.dump(a_record())
    assert SIGNED.load(KEPT.digest, data) == a_record()
    for other, at in [
        (SIGNED.replace(key="b" * 32), name),
        (SIGNED.replace(namespace="team"), name),
        (SIGNED, record_name(make_key(7).digest)),
        (SIGNED, name.replace("v2/", "v3/")),
        (SIGNED, f"files/{name}"),
    ]:
        with pytest.raises(StoreError, match="expected a signature by AUTOTUNED_STORE_KEY, got another"):
            other.open(at, data)


@pytest.mark.parametrize("at", [0, 20, 60, 100, -1])
def test_no_byte_of_what_is_signed_can_be_changed(at: int) -> None:
    data = bytearray(SIGNED.dump(a_record()))
    data[at] ^= 1
    with pytest.raises(StoreError):
        SIGNED.load(KEPT.digest, bytes(data))


def test_without_a_key_all_are_believed_and_with_one_nothing_unsigned() -> None:
    plain = place("redis://host/0")
    assert plain.load(KEPT.digest, SIGNED.dump(a_record())) == plain.load(KEPT.digest, plain.dump(a_record()))
    with pytest.raises(StoreError, match="got none"):
        SIGNED.load(KEPT.digest, plain.dump(a_record()))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 3}', b"[" * 200_000, b"\xff\xfe", b'{"schema": 2, "schema": 2}', b"NaN"],
)
def test_what_is_no_record_is_an_error_that_says_so(content: bytes) -> None:
    plain = place("redis://host/0")
    with pytest.raises(StoreError, match="expected a record, got"):
        plain.load(KEPT.digest, plain.seal(record_name(KEPT.digest), content))
    with pytest.raises(StoreError, match="expected the line"):
        plain.load(KEPT.digest, content)


def test_a_record_of_another_key_or_without_a_choice_is_none_of_this_key() -> None:
    plain = place("redis://host/0")
    for other in (a_record(7), a_record().replace(winner=None)):
        data = plain.seal(record_name(KEPT.digest), plain.dump(other).partition(b"\n")[2])
        with pytest.raises(StoreError, match="expected"):
            plain.load(KEPT.digest, data)


def test_no_secret_is_in_what_is_said_of_a_failure() -> None:
    where = place("redis://me:hu%2Fsh@host/0?token=tok-1", key=KEY, options={"client": {"secret": "deep-one"}})
    error = ValueError(f"no {where.url} hu/sh hu%2Fsh tok-1 deep-one {KEY}")
    said = where.scrubbed(error)
    assert not any(secret in said for secret in ("hu/sh", "hu%2Fsh", "tok-1", "deep-one", KEY))
    assert "hu" not in repr(where) + where.words
    assert isinstance(where, Place)


def test_ten_thousand_configs_fit() -> None:
    timings = tuple(Timing(form(FakeConfig({"BLOCK": n, "OTHER": n})), 10.0, 9.0, 11.0, 40) for n in range(10_000))
    found = TuningRecord(KEPT, timings[0].config, 10.0, "ok", timings)
    assert len(SIGNED.dump(found)) < MAX_RECORD_BYTES
