"""Where a prompt ends, told from the calls of an engine."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import MASK

from dllmark.integrations.prompt_memory import PromptMemory

PROMPT = torch.tensor([[0, 5, 9], [6, 7, 8]])
BEGUN = torch.cat([PROMPT, torch.full((2, 4), MASK)], 1)
IN_PROMPT = (torch.arange(7) < 3).expand(2, -1)


@pytest.fixture
def memory():
    """What has seen the first call of a request."""
    memory = PromptMemory()
    assert torch.equal(memory.see(BEGUN, BEGUN == MASK), IN_PROMPT)
    return memory


@given(st.lists(st.tuples(st.integers(3, 6), st.integers(MASK, 30)), max_size=30))
def test_the_prompt_stays_whatever_is_written_edited_or_masked_again(writes):
    memory, tokens = PromptMemory(), BEGUN.clone()
    memory.see(tokens, tokens == MASK)
    for place, token in writes:
        tokens[:, place] = token  # as a loop does, in the tensor that was shown
        assert torch.equal(memory.see(tokens, tokens == MASK), IN_PROMPT)


def test_a_block_that_is_all_to_be_written_goes_on(memory):
    done = BEGUN.where(BEGUN != MASK, 11)
    longer = torch.cat([done, torch.full((2, 2), MASK)], 1)
    expected = torch.cat([IN_PROMPT, torch.zeros(2, 2, dtype=torch.bool)], 1)
    assert torch.equal(memory.see(longer, longer == MASK), expected)


def test_what_is_edited_in_a_block_is_no_prompt(memory):
    done, where = BEGUN.where(BEGUN != MASK, 11), torch.zeros(2, 7, dtype=torch.bool)
    where[:, 5:] = True
    assert torch.equal(memory.see(done, where), IN_PROMPT)


def test_an_answer_in_the_next_prompt_is_prompt(memory):
    """A conversation: the question after it was not there to be written."""
    turns = torch.cat([BEGUN.where(BEGUN != MASK, 11), PROMPT, torch.full((2, 3), MASK)], 1)
    assert torch.equal(memory.see(turns, turns == MASK), turns != MASK)


@pytest.mark.parametrize("change", ["word", "mask", "fewer texts", "shorter"])
def test_another_text_has_another_prompt(memory, change):
    other = BEGUN.clone()
    other[:, 3] = 12  # as if it were written
    if change in ("word", "mask"):
        other[1, 2] = 20 if change == "word" else MASK
    elif change == "fewer texts":
        other = other[:1]
    else:
        other = other[:, :-1]
    assert torch.equal(memory.see(other, other == MASK), other != MASK)


def test_what_is_forgotten_is_another_text(memory):
    memory.forget()
    going_on = BEGUN.clone()
    going_on[:, 3] = 12
    assert torch.equal(memory.see(going_on, going_on == MASK), going_on != MASK)
