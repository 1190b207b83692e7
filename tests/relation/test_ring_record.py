"""The record of a ring: which key is current, and which records are refused."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.errors import KeyRingError
from dllmark.relation.key import TokenizerId
from dllmark.relation.ring_record import RingKey, RingRecord, parse_date

NOON = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
HERE, ELSEWHERE = TokenizerId("here", "sha256:1"), TokenizerId("elsewhere", "sha256:2")


def ring_key(number, label=None, begins=NOON, **facts):
    facts = {"gamma": 0.5, "tokenizer": HERE, "created": "today", **facts}
    return RingKey(f"{number:016x}", label or f"key {number}", begins=begins, **facts)


def hours(count):
    return timedelta(hours=count)


def record_of(*keys, **facts):
    return RingRecord(keys, **facts)


keys = st.lists(
    st.builds(
        ring_key,
        st.integers(0, 2**64 - 1),
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        st.datetimes(timezones=st.just(timezone.utc)),
        retired=st.none() | st.datetimes(timezones=st.just(timezone.utc)),
        gamma=st.sampled_from([0.25, 0.5]),
    ),
    max_size=8,
    unique_by=(lambda key: key.id, lambda key: key.label),
)


@given(keys, st.none() | st.integers(1, 10**9))
def test_a_record_survives_its_file(keys, after):
    if len(keys) > 1:
        master, derived = keys[0], keys[1]
        keys[1] = replace(derived, master=master.id, gamma=master.gamma)
    record = RingRecord(tuple(keys), after)
    assert RingRecord.from_bytes(record.to_bytes()) == record


@given(keys, st.datetimes(timezones=st.just(timezone.utc)))
def test_the_current_key_is_the_last_to_begin_of_those_that_may_mark(keys, now):
    """Against an obvious loop."""
    best = None
    for key in keys:
        if key.retired is None and (best.begins if best else key.begins) <= key.begins <= now:
            best = key
    if best is None:
        with pytest.raises(KeyRingError, match="no key"):
            RingRecord(tuple(keys)).current(now)
    else:
        assert RingRecord(tuple(keys)).current(now) == best


def test_a_label_chooses_among_the_keys_under_it():
    ring = record_of(
        ring_key(1, "customer-1", NOON + hours(9)),
        ring_key(2, "customer-17", NOON - hours(3)),
        ring_key(3, "customer-17/2026-11", NOON - hours(2)),
        ring_key(4, "customer-17/2026-12", NOON + hours(1)),
        ring_key(5, "customer-170", NOON - hours(1)),
    )
    assert ring.current(NOON, "customer-17").label == "customer-17/2026-11"
    assert ring.current(NOON + hours(2), "customer-17").label == "customer-17/2026-12"
    assert ring.current(NOON, "customer-17/2026-11").label == "customer-17/2026-11"
    assert ring.current(NOON).label == "customer-170"
    with pytest.raises(KeyRingError, match="no key under 'customer-2'"):
        ring.current(NOON, "customer-2")


def test_a_tokenizer_chooses_among_its_keys():
    ring = record_of(ring_key(1), ring_key(2, tokenizer=ELSEWHERE))
    assert ring.current(NOON, fingerprint=HERE.fingerprint).label == "key 1"
    with pytest.raises(KeyRingError, match="no key for the tokenizer of this model: make one"):
        ring.current(NOON, fingerprint="sha256:3")


def test_no_current_key_says_why_and_what_to_do():
    later = record_of(ring_key(1, begins=NOON + hours(1)), ring_key(2, retired=NOON))
    with pytest.raises(KeyRingError, match=r"12:00 UTC: the next one begins 2026-11-16 13:00 UTC"):
        later.current(NOON)
    retired = record_of(ring_key(2, retired=NOON))
    with pytest.raises(KeyRingError, match=r"all are retired.*Nothing is written without a mark"):
        retired.current(NOON)
    with pytest.raises(KeyRingError, match="the ring has no key: make one with"):
        RingRecord().current(NOON)


def test_a_key_is_rotated_to_the_next_number_and_begins_after_it():
    key = ring_key(1, "customer/17")
    assert RingRecord().next_of(key, NOON + hours(1)) == ("customer/17#2", NOON + hours(1))
    second = replace(key, label="customer/17#9")
    label, begins = RingRecord().next_of(second, NOON - hours(1))  # a clock that went back
    assert (label, begins) == ("customer/17#10", key.begins)
    third = replace(key, id=f"{3:016x}", label=label)
    assert record_of(key, third).current(NOON, "customer/17") == third


CONTRADICTIONS = {
    "two masters with the same id": (
        [ring_key(1, "a"), ring_key(1, "b")],
        "key 0000000000000001 is in the ring already, as 'a'",
    ),
    "a label used twice": ([ring_key(1, "a"), ring_key(2, "a")], "the label 'a' is used already"),
    "a label that is an id": ([ring_key(1, "a"), ring_key(2, f"{1:016x}")], "is the id of a key"),
    "a master that is not there": ([ring_key(1, master=f"{9:016x}")], "has no master"),
    "a master that is derived": (
        [ring_key(1), ring_key(2, master=f"{1:016x}"), ring_key(3, master=f"{2:016x}")],
        "the ring has no master 0000000000000002 for 'key 3'",
    ),
}


@pytest.mark.parametrize(("keys", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_keys_that_contradict_each_other_are_refused(keys, reason):
    with pytest.raises(KeyRingError, match=reason):
        RingRecord(tuple(keys))


WHOLE = json.loads(record_of(ring_key(1), ring_key(2, master=f"{1:016x}")).to_bytes())


def with_key(**changes):
    [first, *rest] = WHOLE["keys"]
    return {**WHOLE, "keys": [{**first, **changes}, *rest]}


DAMAGED = {
    "empty": b"",
    "cut short": json.dumps(WHOLE).encode()[:-9],
    "a list": b"[]",
    "nested too deeply": b"[" * 99_999,
    "no keys": {"format": WHOLE["format"], "rotate_after": None},
    "keys is no list": {**WHOLE, "keys": 7},
    "a key is no object": {**WHOLE, "keys": ["a"]},
    "an id that leaves the folder": with_key(id="../../../etc/pass"),
    "an id in another case": with_key(id="000000000000000A"),
    "an id that is a list": with_key(id=["a"]),
    "a label with a line end": with_key(label="a\nb"),
    "gamma out of range": with_key(gamma=2),
    "gamma is no number": with_key(gamma=[]),
    "gamma beyond floats": with_key(gamma=10**400),
    "a tokenizer without a name": with_key(tokenizer={"fingerprint": "x"}),
    "a derived key of no master": {**WHOLE, "keys": WHOLE["keys"][1:]},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_a_clear_error(content):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(KeyRingError, match="restore it from a backup"):
        RingRecord.from_bytes(content)


OTHER = {
    "another version": ({**WHOLE, "format": "dllmark-ring-2"}, "of another version"),
    "a date that is none": (with_key(**{"from": "soon"}), "a date is written 2026-12-01"),
    "a date that is a number": (with_key(retired=7), "a date is written 2026-12-01"),
    "a rotation after no text": ({**WHOLE, "rotate_after": 0}, "after 1 text at least"),
    "a rotation that is no number": ({**WHOLE, "rotate_after": True}, "after 1 text at least"),
}


@pytest.mark.parametrize(("content", "reason"), OTHER.values(), ids=OTHER)
def test_what_is_wrong_with_a_record_is_told(content, reason):
    with pytest.raises(KeyRingError, match=reason):
        RingRecord.from_bytes(json.dumps(content).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.binary()
    | st.dictionaries(st.sampled_from([*WHOLE, "other"]), JSON).map(
        lambda changes: json.dumps({**WHOLE, **changes}).encode()
    )
    | st.dictionaries(st.sampled_from([*WHOLE["keys"][0], "other"]), JSON).map(
        lambda changes: json.dumps(with_key(**changes)).encode()
    )
)
def test_any_bytes_are_a_record_or_a_clear_error(content):
    try:
        record = RingRecord.from_bytes(content)
    except KeyRingError:
        return
    assert RingRecord.from_bytes(record.to_bytes()) == record


def test_a_date_is_utc_unless_it_names_its_zone():
    assert parse_date("2026-12-01") == datetime(2026, 12, 1, tzinfo=timezone.utc)
    assert parse_date("2026-12-01T08:00:00+02:00").hour == 6
