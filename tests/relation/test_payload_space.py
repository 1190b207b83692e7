"""Payloads are derived keys: numbers of some bits, or texts of a list; anything else is refused."""

import pytest

from dllmark.errors import InputError
from dllmark.relation.payload import Payloads
from dllmark.relation.prf import Secrets


def test_a_payload_is_the_key_derived_by_its_label(key):
    assert Payloads(16).key(key, 4711) == key.derive("payload 4711 of 16 bits")
    assert Payloads(["acme", "globex"]).key(key, "globex") == key.derive("globex")


def test_the_same_number_of_other_bits_is_another_payload(key):
    ids = {Payloads(bits).key(key, number).id for bits in (3, 16, 20) for number in range(8)}
    assert len(ids) == 24


def test_a_text_keeps_its_key_when_the_list_grows_or_is_sorted(key):
    assert Payloads(["b"]).key(key, "b") == Payloads(["a", "b", "c"]).key(key, "b")


@pytest.mark.parametrize("payloads", [Payloads(5), Payloads(["acme", "globex", "Zoë"])])
def test_all_secrets_and_ids_at_once_are_those_one_by_one(key, payloads):
    keys = [payloads.key(key, payloads[number]) for number in range(len(payloads))]
    assert payloads.secrets(key)._words.tolist() == Secrets.of(keys)._words.tolist()
    assert payloads.key_ids(key) == [one.id for one in keys]


@pytest.mark.parametrize("bits", [0, -1, 21, 64])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(InputError, match=rf"1 to 20 bits; got {bits}"):
        Payloads(bits)


@pytest.mark.parametrize("number", [-1, 65_536])
def test_a_number_out_of_range_is_refused(key, number):
    with pytest.raises(InputError, match="16 bits lies between 0 and 65,535; got"):
        Payloads(16).key(key, number)


@pytest.mark.parametrize("payload", ["4711", 47.0, True, None])
def test_a_payload_of_bits_is_a_whole_number(key, payload):
    with pytest.raises(InputError, match="whole number"):
        Payloads(16).key(key, payload)


@pytest.mark.parametrize(
    "given",
    ["", "4711x", "-1", "4.7", "٣", "0x10", " 7", "9" * 5000],
    ids=lambda given: given[:9],
)
def test_on_the_command_line_too(given):
    with pytest.raises(InputError, match=r"whole number; got .* give the list"):
        Payloads(16).parse(given)
    assert Payloads(16).parse("4711") == 4711


def test_a_text_that_is_not_in_the_list_is_refused(key):
    with pytest.raises(InputError, match=r"'initech' is not in the list: add it"):
        Payloads(["acme"]).key(key, "initech")
    assert Payloads(["Zoë"]).parse("Zoe\u0308") == "Zoë"
    with pytest.raises(InputError, match="a label is a string"):
        Payloads(["acme"]).key(key, 1)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([], "1 to 1,048,576 texts; got 0"),
        (["a", "b", "a"], "'a' stands twice"),
        (["Zo\xeb", "Zoe\u0308"], "'Zoë' stands twice"),
        (["a", ""], "payload 2 cannot be used: a label has 1 to 200"),
        (["tab\t"], "payload 1 cannot be used"),
        ("acme", r"put a single one in \[ \]"),
    ],
)
def test_a_list_that_cannot_be_told_apart_or_read_is_refused(texts, problem):
    with pytest.raises(InputError, match=problem):
        Payloads(texts)


def test_more_texts_than_twenty_bits_can_name_are_refused(monkeypatch):
    monkeypatch.setattr("dllmark.relation.payload.MOST_BITS", 3)  # a full list takes seconds
    with pytest.raises(InputError, match="1 to 8 texts; got 9"):
        Payloads([*"abcdefghi"])


def test_a_file_has_a_payload_on_each_line(tmp_path):
    path = tmp_path / "customers.txt"
    path.write_text("acme\nglobex ltd\n")
    assert Payloads.read(path).texts == ["acme", "globex ltd"]
    path.write_text("acme\n\nglobex\n")
    with pytest.raises(InputError, match=r"customers.txt: payload 2 cannot be used"):
        Payloads.read(path)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        Payloads.read(path)
    with pytest.raises(InputError, match="No such file"):
        Payloads.read(tmp_path / "missing.txt")
