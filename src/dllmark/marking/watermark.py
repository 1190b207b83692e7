"""Bias logits towards green pairs while text is generated, in whatever order the tokens appear.

A diffusion model may choose a token before its neighbours exist. A `Strategy` says which of the two
neighbours count and how one that is not revealed yet is predicted; `Watermark.bias` adds the
strategy's bias to the logits of the positions about to be filled. It keeps nothing between steps:
whatever a sampler revealed, edited or masked again, the bias follows from the tokens as they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.errors import DllmarkError, InputError, MismatchError
from dllmark.gpu import has_triton
from dllmark.marking.adaptive import needed_share, weaken
from dllmark.marking.bias import biased_logits
from dllmark.marking.gain import Block, candidate_gains
from dllmark.marking.repeats import level_repeats
from dllmark.marking.state import BiasSettings, Reachable, State
from dllmark.marking.strategies import DEFAULT, check_delta, find_strategy
from dllmark.relation.greenlist import GreenList, HashedGreenList
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.relation.source import Source, resolve
from dllmark.relation.tokenizer import AnyTokenizer

if TYPE_CHECKING:
    from dllmark.marking.kernel_hash import DeviceKey


class Watermark:
    """One key's watermark at one strength.

    `delta`, by default the strategy's own, is added to a token's logit for each side on which it
    makes a green pair. An expectation is over the `top_k` likeliest tokens. Special tokens (mask,
    end of text, padding, ids without a token) are never green or red: they get the mean bias, so
    that the key does not change how long texts are.

    >>> watermark = Watermark(key, "expected-bidirectional", delta=2.0)
    """

    def __init__(
        self,
        source: Source,
        strategy: str = DEFAULT.name,
        delta: float | None = None,
        *,
        top_k: int = 8,
        tokenizer: AnyTokenizer | None = None,
    ) -> None:
        self.strategy = find_strategy(strategy)
        delta = self.strategy.default_delta if delta is None else delta
        check_delta(delta)
        if top_k < 1:
            raise DllmarkError(f"an expectation needs top_k of at least 1 token; got {top_k}")
        self._source, self.tokenizer = resolve(source, tokenizer)
        self.identity: Identity = self._source.identity
        self.delta = delta
        self.top_k = top_k
        self._scored_on: dict[tuple[torch.device, int], Tensor] = {}
        self._keys: dict[torch.device, DeviceKey] = {}

    @property
    def on_device(self) -> bool:
        """Whether `bias` works where the logits are and waits for nothing after its first call.

        A CUDA graph can then hold it. A bit matrix lies in the host's memory.
        """
        return isinstance(self._source, WatermarkKey) or self._source.takes_tensors

    def passes(self, positions: Tensor) -> list[Tensor]:
        """Return the positions [B, K] of one step as they are to be decided, one set at a time.

        Tokens chosen at once cannot see each other. Where the strategy asks for it, even positions
        come first and odd ones after them: only neighbours matter to each other. What is not in a
        pass is -1 there.

        >>> import torch
        >>> step = torch.tensor([[4, 7, 5]])
        >>> [one.tolist() for one in Watermark(key, "expected-bidirectional").passes(step)]
        [[[4, -1, -1]], [[-1, 7, 5]]]
        """
        if not self.strategy.even_odd_passes or positions.shape[1] < 2:
            return [positions]
        even = positions % 2 == 0
        return [torch.where(chosen, positions, -1) for chosen in (even, ~even)]

    def bias(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        positions: Tensor,
        logit_positions: Tensor | None = None,
        reachable: Reachable | None = None,
        prompt_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the biased logits [B, K, V] of the positions to fill.

        tokens           [B, L]     the sequence as it is: prompt, text so far, masks, padding
        revealed         [B, L]     False only where the model has yet to write
        logits           [B, R, V]  of the sequence, or of its positions in `logit_positions`
        positions        [B, K]     to fill; -1 where a sequence fills fewer than others
        logit_positions  [B, R]     those that `logits` covers, if not all of them in order
        reachable                   says which tokens' bias matters: others may be left without
        prompt_mask      [B, L]     True at what the model was given: adaptive strategies ask

        Positions of one call see each other as unrevealed (`passes` parts them). A neighbour
        outside the sequence, a special token, or an unrevealed one without logits gives no term.

        What does not fit together raises `InputError`, an id outside the vocabulary
        `TokenizerError`. On a GPU values are checked there, and the host does not wait for it.

        >>> import torch
        >>> tokens = torch.tensor([[7, 2, 9]])
        >>> revealed = torch.tensor([[True, False, True]])
        >>> logits = torch.zeros(1, 3, 16_384)
        >>> watermark.bias(tokens, revealed, logits, torch.tensor([[1]])).shape
        torch.Size([1, 1, 16384])
        """
        if self.strategy.joint:
            raise InputError(f"{self.strategy.name} is no bias: `generate` applies it to a step")
        return self.biased(
            State(tokens, revealed, logits, positions, logit_positions, reachable, prompt_mask)
        )

    def biased(self, state: State) -> Tensor:
        """Return what `bias` does; what is compared with our strategies changes it here."""
        state.check_shapes()
        logits, settings = state.logits, self._settings(state.vocab_size)
        green = self._green_list(state.vocab_size)
        scored = self._scored(state.vocab_size, logits.device)
        by_kernels = isinstance(self._source, WatermarkKey) and _takes(logits, settings.top_k)
        if not by_kernels or logits.device.type == "cpu":
            state.check_values()
        if by_kernels:
            from dllmark.marking import kernels

            key = self._device_key(logits.device)
            biased = kernels.biased_logits(state, settings, scored, key)
        else:
            biased = biased_logits(state, settings, scored, green)
        if self.strategy.fresh:
            biased = level_repeats(biased, state, settings, scored)
        return weaken(biased, state, settings, scored, green) if self.strategy.adaptive else biased

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: what the likely tokens of a block add to the count, times the bias."""
        green, scored = self._green_list(vocab_size), self._scored(vocab_size, block.p.device)
        settings = self._settings(vocab_size)
        gains = candidate_gains(block, width, settings, scored, green)
        if not self.strategy.adaptive:
            return gains
        return gains * needed_share(block, settings, scored, green)[:, None, None]

    def _settings(self, vocab_size: int) -> BiasSettings:
        """Return what the bias of logits over a vocabulary depends on."""
        most = {"none": 0, "argmax": 1, "expectation": self.top_k}[self.strategy.prediction]
        gamma = self.identity.gamma
        return BiasSettings(self.strategy, self.delta, gamma, top_k=min(most, vocab_size))

    def _device_key(self, device: torch.device) -> DeviceKey:
        """Return the key in a device's memory, where the kernels read it."""
        from dllmark.marking.kernel_hash import DeviceKey

        if device not in self._keys:
            assert isinstance(self._source, WatermarkKey)
            self._keys[device] = DeviceKey(self._source, device)
        return self._keys[device]

    def _green_list(self, vocab_size: int) -> GreenList:
        """Return the green list over the model's vocabulary."""
        if isinstance(self._source, WatermarkKey):
            source: GreenList = HashedGreenList(self._source, vocab_size)
        else:
            source = self._source
        if self.tokenizer.vocab_size > vocab_size or source.vocab_size != vocab_size:
            raise MismatchError(
                f"the model has logits for {vocab_size} tokens, the tokenizer "
                f"{self.tokenizer.name} has {self.tokenizer.vocab_size} and the green list covers "
                f"{source.vocab_size}: they belong to different models"
            )
        return source

    def _scored(self, vocab_size: int, device: torch.device) -> Tensor:
        """Return [V]: the tokens that are green or red; ids past the tokenizer's are neither.

        It is kept on the device: copying it there in each step would wait for the GPU.
        """
        place = (device, vocab_size)
        if place not in self._scored_on:
            with torch.inference_mode(False):
                scored = torch.zeros(vocab_size, dtype=torch.bool)
                scored[: self.tokenizer.vocab_size] = torch.from_numpy(self.tokenizer.scored)
                self._scored_on[place] = scored.to(place[0])
        return self._scored_on[place]


def _takes(logits: Tensor, top_k: int) -> bool:
    """Return whether the kernels run on these logits: on a GPU, and in Triton's interpreter."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (logits.is_cuda or interpreted) or not has_triton():
        return False
    if logits.requires_grad and torch.is_grad_enabled():
        return False  # the kernels compute no gradient
    from dllmark.marking import kernels

    return logits.dtype in kernels.DTYPES and top_k <= kernels.MAX_TOP_K
