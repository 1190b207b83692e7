"""A watermark is named by a key, a key file or a green list, and its tokenizer in several ways."""

import pytest
import transformers
from checkpoints import DREAM_SPECIALS, tokenizer_json, write_qwen_files
from samples import marked_text

from dllmark.detection.any_key import detect_any
from dllmark.detection.detector import Detector
from dllmark.errors import InputError, KeyFileError, MismatchError, TokenizerError
from dllmark.integrations.marker import Marker
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import BitMatrix, HashedGreenList
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.tokenizer import EMBEDDED, as_tokenizer, load_tokenizer


def marker(source, tokenizer=None):
    made = Marker(source, tokenizer=tokenizer)
    made.idle = False
    return made.watermark


DOORS = {
    "Watermark": lambda source, tokenizer=None: Watermark(source, tokenizer=tokenizer),
    "Detector": Detector,
    "adapters": marker,
}


@pytest.fixture(params=DOORS.values(), ids=DOORS)
def door(request):
    """One of the classes that take a key."""
    return request.param


@pytest.fixture(scope="module")
def fast():
    """The embedded tokenizer as transformers has it."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(EMBEDDED), mask_token="<|mask|>", eos_token="<|endoftext|>"
    )


@pytest.fixture(scope="module")
def slow():
    """A tokenizer of transformers that is written in Python."""
    return transformers.CanineTokenizer()


def test_a_key_or_the_path_of_its_file_open_every_door(door, key, key_file):
    for source in (key, key_file, str(key_file)):
        assert door(source).identity == key.identity


def test_a_green_list_opens_every_door_with_a_tokenizer_and_not_without(
    door, small_key, small_tokenizer, tmp_path
):
    hashed = HashedGreenList(small_key, 35)
    for green in (hashed, BitMatrix.build(hashed, tmp_path / "m.bits", progress=False)):
        assert door(green, small_tokenizer).identity == small_key.identity
        with pytest.raises(InputError, match="pass the model's"):
            door(green)
    with pytest.raises(MismatchError, match="different models"):
        door(HashedGreenList(small_key, 34), small_tokenizer)


@pytest.mark.parametrize("given", [None, 7, b"my.key", Secret(bytes(16)), [], object()])
def test_anything_else_is_refused_at_every_door(door, given):
    with pytest.raises(InputError, match=rf"path of a key file.*got {type(given).__name__}"):
        door(given)


def test_a_missing_key_file_is_refused_at_every_door(door, tmp_path):
    with pytest.raises(KeyFileError, match="there is no key file"):
        door(tmp_path / "none.key")


def test_several_keys_may_be_files_and_one_watermark_counts_once(key, key_file):
    noted = WatermarkKey(key.secret, key.gamma, key.tokenizer, note="the same, with a note")
    assert detect_any([key, key_file, noted], "a few words").keys_tried == 1
    with pytest.raises(InputError, match="put a single one in"):
        detect_any(str(key_file), "a few words")


def test_every_door_takes_the_tokenizer_of_transformers(door, key, fast, tokenizer):
    for given in (fast, fast.backend_tokenizer):
        taken = door(key, given).tokenizer
        assert taken.fingerprint == tokenizer.fingerprint
        assert (taken.scored == tokenizer.scored).all()


def test_a_tokenizer_may_be_named_as_for_load_tokenizer(door, key):
    for given in ("embedded", str(EMBEDDED), EMBEDDED):
        assert door(key, given).tokenizer.fingerprint == key.tokenizer.fingerprint


def test_text_is_scored_alike_with_the_tokenizer_of_transformers(key, fast, tokenizer):
    fast.backend_tokenizer.enable_truncation(5)  # a setting for models, not for texts to score
    fast.backend_tokenizer.enable_padding(length=1000)
    text = marked_text(key, tokenizer, 60)
    detection = Detector(key, fast).detect(text)
    fast.backend_tokenizer.no_truncation()
    fast.backend_tokenizer.no_padding()
    assert detection == Detector(key).detect(text)
    assert detection.pairs == 59


def test_a_tokenizer_that_transformers_loaded_keeps_its_fingerprint_and_its_name(fast, tmp_path):
    fast.save_pretrained(tmp_path)
    loaded = as_tokenizer(transformers.AutoTokenizer.from_pretrained(tmp_path))
    assert loaded.fingerprint == load_tokenizer("embedded").fingerprint
    assert loaded.name == str(tmp_path)


def test_dreams_tokenizer_in_transformers_has_the_fingerprint_of_its_files(tmp_path):
    write_qwen_files(tmp_path, tokenizer_json(DREAM_SPECIALS))
    theirs = transformers.Qwen2Tokenizer.from_pretrained(tmp_path)
    assert as_tokenizer(theirs).fingerprint == load_tokenizer(str(tmp_path)).fingerprint


def test_another_tokenizer_of_transformers_is_refused(door, small_key, fast):
    with pytest.raises(MismatchError, match=r"is not the one key .* was made for"):
        door(small_key, fast)


OLD_KEY_FILE = """{
  "format": "dllmark-key-1",
  "scheme": "dllmark-1",
  "id": "93fcf80a357c9266",
  "secret": "101112131415161718191a1b1c1d1e1f",
  "gamma": 0.5,
  "tokenizer": {
    "name": "embedded",
    "fingerprint": "sha256:e17c56e2bb2bbaf2ddce28376a5bced1"
  },
  "created": "2026-11-15T08:00:00+00:00",
  "note": "",
  "checksum": "281b94623d418d2f"
}
"""
"""As `keygen` wrote it for the model that was in the package before."""


@pytest.fixture
def old_key(tmp_path):
    """The file of a key for the model of an earlier version."""
    path = tmp_path / "old.key"
    path.touch(0o600)
    path.write_text(OLD_KEY_FILE)
    return path


def test_a_key_for_the_model_of_another_version_is_refused_with_what_to_do(door, old_key):
    said = r"another version of dllmark.*`dllmark keygen`.* that version, or with its tokenizer"
    for open_door in (lambda: door(old_key), lambda: door(old_key, "embedded")):
        with pytest.raises(MismatchError, match=said):
            open_door()


def test_commands_given_a_key_of_another_version_say_what_to_do(run, old_key, tmp_path):
    for command in (
        ["detect"],
        ["generate", "Why?"],
        ["serve", "--port", 0, "--model", "none"],
        ["scan", tmp_path, "-o", tmp_path / "out"],
    ):
        result = run(*command, "--key", old_key, stdin="Some words.")
        assert result.status == 2
        assert "key 93fcf80a357c9266 was made for the model in another version" in result.err
        assert "`dllmark keygen`" in result.err.replace("\n", " ")


def test_texts_of_another_version_are_still_checked_with_its_tokenizer(
    run, small_tokenizer, tmp_path
):
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.definition())
    old = TokenizerId("embedded", small_tokenizer.fingerprint)
    WatermarkKey(Secret(bytes(range(16))), 0.5, old).save(tmp_path / "old.key")
    given = ("--key", tmp_path / "old.key", "--tokenizer", tmp_path / "tokenizer.json")
    assert run("detect", *given, "--json", stdin="w1 w2 w3").json["pairs"] == 2


def test_a_slow_tokenizer_is_refused_with_what_to_give_instead(door, key, slow):
    with pytest.raises(TokenizerError, match=r"CanineTokenizer is no .* fast one of Hugging Face"):
        door(key, slow)


@pytest.mark.parametrize("given", [7, b"embedded", ["embedded"], len])
def test_what_is_no_tokenizer_is_refused(door, key, given):
    with pytest.raises(TokenizerError, match="is no tokenizer that can be used"):
        door(key, given)
