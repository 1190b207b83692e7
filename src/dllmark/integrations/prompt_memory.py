"""What of a text an engine was given, told from the calls it makes while it writes.

An adapter sees tokens and which of them are to be written, and never where the prompt ends. An
adaptive strategy asks: a prompt's pairs are no mark of ours, even if an earlier answer is in it.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PromptMemory:
    """Remembers what stood in a text before the model wrote.

    A call is about the same text as the one before while the prompt stays as it was, and what has
    come behind it since is all to be written, as the next block of a text is. Else it is about
    another text, and what is not to be written in it is its prompt.

    >>> memory, mask = PromptMemory(), 2
    >>> begun, going_on = torch.tensor([[7, 8, mask, mask]]), torch.tensor([[7, 8, 5, mask]])
    >>> memory.see(begun, begun == mask).tolist()
    [[True, True, False, False]]
    >>> memory.see(going_on, going_on == mask).tolist()
    [[True, True, False, False]]
    """

    def __init__(self) -> None:
        self._tokens: Tensor | None = None
        self._prompt_mask: Tensor | None = None

    def see(self, tokens: Tensor, where: Tensor) -> Tensor:
        """Return [B, L]: True in the prompts of texts in which the positions `where` are written.

        Padding is prompt too, and what is given behind masks.
        """
        prompt_mask = self._known(tokens, where)
        self._tokens, self._prompt_mask = tokens.clone(), prompt_mask
        return prompt_mask

    def forget(self) -> None:
        """Take the next call for one about another text."""
        self._tokens = self._prompt_mask = None

    def _known(self, tokens: Tensor, where: Tensor) -> Tensor:
        """Return the prompts of the last call, if it was about these texts, or else new ones."""
        before, prompt_mask = self._tokens, self._prompt_mask
        if before is None or prompt_mask is None or before.device != tokens.device:
            return ~where
        (batch, length), (size, known) = tokens.shape, before.shape
        if batch != size or length < known or not where[:, known:].all():
            return ~where
        changed = (tokens[:, :known] != before) | where[:, :known]
        if (changed & prompt_mask).any():
            return ~where
        return torch.cat([prompt_mask, ~where[:, known:]], 1)
