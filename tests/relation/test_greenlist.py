"""Every form of the green list gives the same colours on the same key."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from siphash24 import siphash24

from dllmark.errors import InputError
from dllmark.relation.greenlist import PAGE, BitMatrix, HashedGreenList, ReferenceBitmap
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey

SIZES = [1, 7, 8, 37, 128, 129, 256, 300, 517]


def make_key(gamma: float = 0.5, secret: bytes = b"a fixed test key") -> WatermarkKey:
    return WatermarkKey(Secret(secret), gamma, TokenizerId("test", "none"))


def naive_green(key: WatermarkKey, left: int, right: int) -> bool:
    message = (left << 32 | right).to_bytes(8, "little")
    hashed = int.from_bytes(siphash24(message, key=key.secret.reveal()).digest(), "little")
    numerator, denominator = key.gamma.as_integer_ratio()
    return hashed * denominator < numerator << 64


def naive_matrix(key: WatermarkKey, size: int) -> np.ndarray:
    return np.array([[naive_green(key, i, j) for j in range(size)] for i in range(size)])


def reference_file(folder, matrix: np.ndarray, gamma: float = 0.5):
    """Write a matrix as the reference implementation does."""
    path = folder / f"bitmap_v{len(matrix)}_r{round(100 * gamma)}_k17.bin"
    np.packbits(matrix.astype(np.uint8).reshape(-1)).tofile(path)
    return path


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_rows_columns_and_pairs_are_the_keyed_relation(gamma):
    key, size = make_key(gamma), 37
    green, expected = HashedGreenList(key, size), naive_matrix(key, size)
    every = np.arange(size)
    assert (green.rows(every) == expected).all()
    assert (green.columns(every) == expected.T).all()
    assert (green.pairs(every[:, None], every[None, :]) == expected).all()


def test_pairs_of_many_blocks_are_the_same_as_one_by_one():
    green = HashedGreenList(make_key(), 1000)
    left, right = np.random.default_rng(0).integers(0, 1000, (2, 20_001))
    table = green.rows(np.arange(1000))
    assert (green.pairs(left, right) == table[left, right]).all()


def test_tensors_get_the_same_colours_as_arrays():
    green, some = HashedGreenList(make_key(0.3), 517), np.array([0, 3, 516])
    assert (green.rows(torch.from_numpy(some)).numpy() == green.rows(some)).all()
    assert (green.columns(torch.from_numpy(some)).numpy() == green.columns(some)).all()


@pytest.mark.parametrize("size", SIZES)
def test_a_bit_matrix_gives_the_same_answers_as_the_hash(tmp_path, size):
    hashed = HashedGreenList(make_key(0.25), size)
    matrix = BitMatrix.build(hashed, tmp_path / "m.bits", progress=False)
    every = np.arange(size)
    assert (matrix.rows(every) == hashed.rows(every)).all()
    assert (matrix.columns(every) == hashed.columns(every)).all()
    assert matrix.identity == hashed.identity
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, size, (2, 500))
    assert (matrix.pairs(left, right) == hashed.pairs(left, right)).all()


@given(data=st.data(), size=st.integers(1, 400))
@settings(max_examples=20)
def test_any_pair_of_a_bit_matrix_is_the_hashed_one(tmp_path_factory, data, size):
    hashed = HashedGreenList(make_key(), size)
    path = tmp_path_factory.mktemp("matrix") / "m.bits"
    matrix = BitMatrix.build(hashed, path, progress=False)
    token = st.integers(0, size - 1)
    left, right = (np.array([data.draw(token)]) for _ in range(2))
    assert matrix.pairs(left, right) == hashed.pairs(left, right)
    assert matrix.rows(left)[0, right] == matrix.columns(right)[0, left]


def test_no_tokens_have_no_lists(tmp_path):
    hashed, none = HashedGreenList(make_key(), 37), np.array([], dtype=np.int64)
    for green in (hashed, BitMatrix.build(hashed, tmp_path / "m", progress=False)):
        assert green.rows(none).shape == green.columns(none).shape == (0, 37)


def test_a_bit_matrix_takes_one_bit_a_pair_on_disk(tmp_path):
    path = tmp_path / "m.bits"
    BitMatrix.build(HashedGreenList(make_key(), 2560), path, progress=False)
    assert path.stat().st_size == 2560 * 2560 // 8 + PAGE
    bands, across, *page = BitMatrix._shape(126_464)
    assert bands * across * np.prod(page) == 126_464**2 // 8


def test_building_shows_progress(tmp_path, capsys):
    BitMatrix.build(HashedGreenList(make_key(), 300), tmp_path / "m.bits")
    assert "building the bit matrix" in capsys.readouterr().out


def test_an_interrupted_build_leaves_nothing(tmp_path):
    class Stops(HashedGreenList):
        def rows(self, left):
            if left[0] > 0:
                raise KeyboardInterrupt
            return super().rows(left)

    with pytest.raises(KeyboardInterrupt):
        BitMatrix.build(Stops(make_key(), 600), tmp_path / "m.bits", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_bit_matrix_is_as_private_as_its_key(tmp_path):
    path = tmp_path / "m.bits"
    BitMatrix.build(HashedGreenList(make_key(), 40), path, progress=False)
    assert path.stat().st_mode & 0o077 == 0


def test_a_matrix_file_that_is_missing_foreign_damaged_or_cut_short_is_refused(tmp_path):
    path = tmp_path / "m.bits"
    with pytest.raises(InputError, match="cannot read"):
        BitMatrix(path)
    BitMatrix.build(HashedGreenList(make_key(), 300), path, progress=False)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cut short"):
        BitMatrix(path)
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    with pytest.raises(InputError, match="damaged: build it again"):
        BitMatrix(path)
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a dllmark bit matrix"):
        BitMatrix(path)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_the_reference_implementation_is_read_bit_by_bit(tmp_path, size):
    bits = np.random.default_rng(size).random((size, size)) < 0.25
    bitmap = ReferenceBitmap(reference_file(tmp_path, bits, 0.25))
    every = np.arange(size)
    assert (bitmap.rows(every) == bits).all()
    assert (bitmap.columns(every) == bits.T).all()
    assert bitmap.identity.gamma == 0.25
    converted = BitMatrix.build(bitmap, tmp_path / "m.bits", progress=False)
    assert (converted.columns(every) == bits.T).all()


def test_a_reference_file_of_another_name_or_size_is_refused(tmp_path):
    with pytest.raises(InputError, match="bitmap_v"):
        ReferenceBitmap(tmp_path / "matrix.bin")
    with pytest.raises(InputError, match="cannot read"):
        ReferenceBitmap(tmp_path / "bitmap_v10_r50_k1.bin")
    path = reference_file(tmp_path, np.eye(10))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cut short"):
        ReferenceBitmap(path)
