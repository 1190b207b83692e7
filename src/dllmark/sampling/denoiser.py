"""One step of denoising: from the model's logits to the tokens that are revealed.

A step has four parts. The model gives logits for the block, and for one position past it, which the
watermark predicts. Every masked position gets a confidence, from these logits as they are; a
watermark that biases the order biases them first, to know which token it would write. The most
confident positions are chosen. Their logits get the watermark's bias, in one pass or in two, and a
token is drawn for each, with the noise that its candidate was drawn with: a watermark of strength 0
changes nothing at all. LLaDA2.1 also replaces tokens it has written: by what it would write there
now, bias and all, if that is certain enough.

Inside a step the host never waits for the GPU, and the shapes of all tensors are known before it,
so that `Recorder` can replay a step it has seen as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.marking.watermark import Watermark
from dllmark.models.transformer import Cache
from dllmark.sampling.canvas import Canvas, write
from dllmark.sampling.choice import choose, edits
from dllmark.sampling.confidence import (
    by_candidate,
    confidence,
    draw,
    draw_noise,
    reachable_tokens,
    warp_logits,
)
from dllmark.sampling.no_repeat import forbid_repeats
from dllmark.sampling.recorder import Recorder
from dllmark.sampling.settings import Dream, Llada, Llada2, Sampler

if TYPE_CHECKING:
    from dllmark.models.loading import Model


@dataclass(frozen=True)
class StepShape:
    """What a step's tensors measure: two steps of one shape are the same work.

    width     the positions of the block
    beyond    1 if there is a position past the block, which the watermark predicts, else 0
    most      how many tokens a text reveals at most
    computed  how many positions the model computes, from the block's first; None for all of them
    before    and how many before the block's first
    """

    width: int
    beyond: int
    most: int
    computed: int | None
    before: int = 0


class Denoiser:
    """Reveals tokens of one canvas, step by step.

    `draw_noise`, `choose` and `apply_bias` are the three places where a watermark can act; one that
    does more has a `fill` of its own.
    """

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        sampler: Sampler,
        watermark: Watermark | None,
        generator: torch.Generator,
    ) -> None:
        self.model, self.canvas, self.sampler = model, canvas, sampler
        self.watermark, self.generator = watermark, generator
        self.cache_mode = "none" if isinstance(sampler, Dream | Llada2) else sampler.cache
        self.block_length = sampler.block_length if isinstance(sampler, Llada2) else 0
        self.cache = (
            None
            if self.cache_mode == "none" and not self.block_length
            else Cache(model.config, canvas.tokens, model.transformer.embedding.weight.dtype)
        )
        if sampler.no_repeat_ngram:
            edges = torch.from_numpy(model.tokenizer.word_edges)
            self.word_edges = edges.to(canvas.tokens.device)
        # a product by groups of experts has not been tried in a CUDA graph
        may_record = model.config.experts is None and (watermark is None or watermark.on_device)
        self.recorder = Recorder(*self.generators(), enabled=may_record)
        self.block: range | None = None
        self.first = torch.zeros((), dtype=torch.long, device=canvas.tokens.device)
        self.count = torch.zeros(len(canvas.tokens), dtype=torch.long, device=self.first.device)

    def generators(self) -> list[torch.Generator]:
        """Return all that a step draws from."""
        return [self.generator]

    def reveal(self, block: range, count: Tensor, most: int, fresh: bool) -> None:
        """Write the `count` [B] tokens of a block that are next; `fresh` is its first step.

        What a block-causal model has computed of earlier blocks is exact and stays, once the last
        of them has been computed as it was left.
        """
        beyond = int(block.stop < self.canvas.length and not self.block_length)
        computed, before = None, 0
        # with a window, a later block begins with the one before it, which has been written since
        window = self.block if fresh and self.cache_mode == "window" else None
        if self.block_length:
            first = block.start <= self.canvas.start
            computed = len(block)
            before = (block.start if first else self.block_length) if fresh else 0
        elif self.cache is not None and (window or not fresh):
            # in a shifted model, the block's last position predicts the one past it
            past = 0 if self.model.config.shifted else beyond
            end = self.canvas.length if self.cache_mode == "prefix" else block.stop + past
            computed = end - block.start
            before = block.start - window.start if window else 0
        self.block = block
        shape = StepShape(len(block), beyond, most, computed, before)
        self.first.fill_(block.start)
        self.count.copy_(count)
        self.recorder.run(shape, lambda: self._step(shape))

    def edit(self, block: range, sampler: Llada2) -> Iterator[None]:
        """Replace tokens of a block without masks until none changes; one step at a time."""
        if sampler.edit_threshold is None:
            return
        within = slice(block.start, block.stop)
        for _ in range(sampler.edit_steps):
            before = self.canvas.tokens[:, within].clone()
            self.reveal(block, torch.zeros_like(self.count), len(block), fresh=False)
            yield
            if torch.equal(before, self.canvas.tokens[:, within]):
                return

    def _step(self, shape: StepShape) -> None:
        """Do one step of that shape at `first`, for `count` tokens."""
        # One position past the block too: the watermark predicts the right neighbour of its last.
        at = self.first + torch.arange(shape.width + shape.beyond, device=self.first.device)
        covered = at.repeat(len(self.canvas.tokens), 1)
        logits = self._predict(covered, shape)
        noise = self.draw_noise(logits[:, : shape.width], at[: shape.width])
        self.fill(logits, noise, covered, shape)

    def fill(self, logits: Tensor, noise: Tensor | None, covered: Tensor, shape: StepShape) -> None:
        """Choose positions and their tokens from the logits of what is `covered`; write them."""
        canvas, sampler = self.canvas, self.sampler
        inside, block = logits[:, : shape.width], covered[0, : shape.width]
        masked = ~canvas.revealed.index_select(1, block)
        written = None
        if isinstance(sampler, Llada2) and sampler.edit_threshold is not None:
            written = ~masked & (block >= canvas.start)
        biased = self._judged(inside, block, masked, written, logits, noise, covered)
        score = confidence(sampler, inside, biased, noise, self.model.end_ids, self.generator)
        places = self.choose(score, masked, inside, noise, shape)
        if isinstance(sampler, Llada2) and written is not None:
            now = draw(warp_logits(sampler, biased), noise)
            changed = written & (now != canvas.tokens.index_select(1, block))
            places = torch.cat([places, edits(sampler, score, changed)], dim=1)

        chosen = torch.where(places >= 0, places + self.first, -1)
        for positions in self._passes(chosen):
            write(canvas, block, positions, self._draw(positions, logits, noise, covered))

    def draw_noise(self, inside: Tensor, block: Tensor) -> Tensor | None:
        """Return the noise that the tokens of a block are drawn with; None takes the likeliest."""
        alike = inside[:1] if self.canvas.pair else inside
        noise = draw_noise(self.sampler, alike, self.generator, self._open(block))
        return None if noise is None else noise.expand_as(inside)

    def choose(
        self,
        score: Tensor,
        masked: Tensor,
        inside: Tensor,
        noise: Tensor | None,
        shape: StepShape,
    ) -> Tensor:
        """Return [B, most]: the places of a block that a step reveals, best first, then -1."""
        return choose(self.sampler, score, masked, self.count, shape.most)

    def _passes(self, chosen: Tensor) -> list[Tensor]:
        """Return the positions [B, K] of a step as they are written; without a mark all at once."""
        if self.watermark is None:
            return [chosen]
        passes = [self._to_mark(positions) for positions in self.watermark.passes(chosen)]
        if self.canvas.pair:
            passes[0][1] = chosen[1]
        return passes

    def _to_mark(self, positions: Tensor) -> Tensor:
        """Return those of the positions [B, K] that get the watermark's bias, else -1."""
        if not self.canvas.pair:
            return positions
        return torch.stack([positions[0], torch.full_like(positions[1], -1)])

    def _judged(
        self,
        inside: Tensor,
        block: Tensor,
        masked: Tensor,
        written: Tensor | None,
        logits: Tensor,
        noise: Tensor | None,
        covered: Tensor,
    ) -> Tensor:
        """Return the logits [B, W, V] that the candidates of a block are drawn from.

        These are those `inside` the block. They have the watermark's bias where it takes part in
        the choice of positions: at masks if it biases the order, and at what is `written` already
        and may be replaced.
        """
        mark = self.watermark
        guided = mark is not None and mark.strategy.biases_order and by_candidate(self.sampler)
        if mark is None or (not guided and written is None):
            return inside
        here = masked & guided if written is None else masked & guided | written
        positions = self._to_mark(torch.where(here, block, -1))
        biased = self.apply_bias(positions, logits, noise, covered)
        return torch.where((positions >= 0)[..., None], biased, inside)

    def _draw(
        self, positions: Tensor, logits: Tensor, noise: Tensor | None, covered: Tensor
    ) -> Tensor:
        """Return a token for each of the positions [B, K] of the block."""
        chosen = self.apply_bias(self._to_mark(positions), logits, noise, covered)
        if self.canvas.pair:
            chosen[1] = self._at(positions, logits)[1]
        noise = None if noise is None else self._at(positions, noise)
        return draw(warp_logits(self.sampler, chosen), noise)

    def _at(self, positions: Tensor, values: Tensor) -> Tensor:
        """Return the values [B, K, V] at the positions [B, K], of those [B, R, V] of the block."""
        which = torch.arange(len(positions), device=positions.device)[:, None]
        return values[which, (positions - self.first).clamp(min=0)]

    def apply_bias(
        self, positions: Tensor, logits: Tensor, noise: Tensor | None, covered: Tensor
    ) -> Tensor:
        """Return the logits of the positions [B, K] with the watermark's bias, if there is one.

        The logits are those of the positions that are `covered` [B, R]. Where hashing is dear, only
        tokens that may be drawn get the bias, which is all that counts: on a CPU, and on a GPU
        where several tokens predict a neighbour.
        """
        if self.watermark is None:
            return self._at(positions, logits)
        canvas, reachable = self.canvas, None
        if logits.device.type == "cpu" or self.watermark.strategy.prediction == "expectation":
            here = self._at(positions, logits)
            noise = None if noise is None else self._at(positions, noise)
            reachable = partial(reachable_tokens, self.sampler, here, noise)
        return self.watermark.bias(
            canvas.tokens,
            canvas.revealed,
            logits,
            positions,
            covered,
            reachable,
            canvas.prompt_mask,
        )

    def _open(self, at: Tensor) -> Tensor | None:
        """Return which of the positions [R] some text has yet to write; None stands for all.

        Nobody asks for the logits of the others, unless a token may be replaced. On a GPU it is all
        of them: shapes must be known before a step.
        """
        if at.device.type != "cpu" or isinstance(self.sampler, Llada2):
            return None
        return (~self.canvas.revealed.index_select(1, at)).any(0).nonzero()[:, 0]

    def _predict(self, covered: Tensor, shape: StepShape) -> Tensor:
        """Return the model's logits [B, R, V] for some positions, -inf for what must not come.

        That is the mask, ids past the tokenizer's, with `suppress_end` the end of a text, and what
        `no_repeat_ngram` forbids. Of positions that need none (`_open`), the logits are 0.
        """
        model, canvas, sampler = self.model, self.canvas, self.sampler
        places = self._open(covered[0])
        asked = covered if places is None else covered.index_select(1, places)
        at = None
        if shape.computed is not None:
            count = shape.before + shape.computed
            at = self.first - shape.before + torch.arange(count, device=self.first.device)
        logits: Tensor = model.transformer(
            canvas.tokens, canvas.attended, asked, self.cache, at, self.block_length
        ).float()
        if isinstance(sampler, Llada) and sampler.cfg_scale:
            unprompted = canvas.tokens.clone()
            unprompted[:, : canvas.start] = model.mask_id
            without = model.transformer(unprompted, canvas.attended, asked).float()
            logits = without + (sampler.cfg_scale + 1) * (logits - without)
        if places is not None:
            everywhere = logits.new_zeros(*covered.shape, logits.shape[-1])
            logits = everywhere.index_copy_(1, places, logits)
        logits[..., model.mask_id] = -torch.inf
        logits[..., model.tokenizer.vocab_size :] = -torch.inf
        if sampler.suppress_end:
            for end in model.end_ids:
                logits[..., end] = -torch.inf
        if sampler.no_repeat_ngram:
            forbid_repeats(
                logits, canvas.tokens, self._text(), covered[0], sampler.no_repeat_ngram,
                self.word_edges, model.mask_id,
            )  # fmt: skip
        return logits

    def _text(self) -> Tensor:
        """Return [B, L]: what of the texts is written. Their ends are not: they stand in a row."""
        canvas = self.canvas
        text = canvas.revealed & ~canvas.prompt_mask
        for end in self.model.end_ids:
            text = text & (canvas.tokens != end)
        return text
