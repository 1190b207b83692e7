"""SGLang: a plugin that adds dLLM algorithms which write with the watermark.

The entry point `sglang.srt.plugins` calls `register`. A server then runs with

    --dllm-algorithm DLLMarkLowConfidence --dllm-algorithm-config x.yaml

and does not start unless x.yaml names a key file that can be read.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllmark.errors import DllmarkError
from dllmark.integrations.audit import RequestCount, audit_file
from dllmark.integrations.marker import Marker, needs
from dllmark.marking.strategies import ENGINE_DEFAULT

REQUIREMENT = "sglang>=0.5.18"

with needs(REQUIREMENT):
    from sglang.srt.dllm.algorithm import algo_name_to_cls

logger = logging.getLogger(__name__)

SETTINGS = {"key", "strategy", "delta", "tokenizer", "audit"}
EXAMPLE = "dllmark:\n  key: /path/to/my.key"

STEPS = (["forward_batch", "full_logits", "states"], ["forward_batch", "logits_output", "states"])
"""The parameters of an algorithm's step: those of the releases, and those of the main branch."""

STEP_METHODS = {"step", "init_step_state", "max_steps"}
"""The public methods of an algorithm about steps. Another may be a way to write past `step`."""


def register() -> None:
    """Add the two classes below to SGLang's algorithms, under their names."""
    for algorithm in (DLLMarkLowConfidence, DLLMarkJointThreshold):
        algo_name_to_cls[algorithm.__name__] = algorithm


class _Block(NamedTuple):
    """The block a request was last run on, and the text that is known up to its end.

    prompt_mask  True at what of the text the request came with
    """

    request: str
    start: int
    text: Tensor
    prompt_mask: Tensor


class MarkedAlgorithm:
    """Mixed into a dLLM algorithm: it biases the logits before each step.

    A step sees one block only. The text before it is what `run` saw of the request's blocks before;
    where these came out of SGLang's prefix cache, the pair across is not marked.
    """

    block_size: int
    mask_id: int

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.marker = _marker(config)
        audit = config.algorithm_config["dllmark"].get("audit")
        self._audit = None if audit is None else audit_file(audit)
        self._counts: dict[int, RequestCount] = {}
        weakref.finalize(self, _end_all, self._counts)
        self._slots: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._before = self._known_prompt = torch.empty(0)
        self._report_at = 1

    def run(self, model_runner: Any, forward_batch: Any, algo_states: Any = None) -> Any:
        """Run a block as the base class does, knowing the text before it."""
        starts: list[int] = forward_batch.positions.view(-1, self.block_size)[:, 0].tolist()
        slots: list[int] = forward_batch.req_pool_indices.tolist()
        requests = forward_batch.rids or [""] * len(slots)
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        masked = self._masked(forward_batch)
        begun = [
            self._begun(*place) for place in zip(slots, requests, starts, ~masked, strict=True)
        ]
        self._before = _to_the_right([one.text for one in begun], blocks, self.mask_id)
        self._known_prompt = _to_the_right([one.prompt_mask for one in begun], masked, True)
        masks: list[int] = masked.sum(1).tolist()
        for place in zip(slots, requests, starts, masks, strict=True):
            self._count(*place)
        self._slots = slots
        wanted, before = any(masks), self.marker.biased
        result = super().run(model_runner, forward_batch, algo_states)  # type: ignore[misc]
        if wanted and self.marker.biased == before:
            raise DllmarkError("SGLang filled masks without calling step: nothing was marked")
        written = forward_batch.input_ids.view(-1, self.block_size)
        for slot, one, block in zip(slots, begun, written, strict=True):
            self._blocks[slot] = one._replace(text=torch.cat([one.text.to(block), block]))
        self._report()
        return result

    def step(self, forward_batch: Any, logits_output: Any, states: list[Any]) -> Any:
        """Bias the logits in place, then choose tokens as the base class does."""
        block = forward_batch.input_ids.view(-1, self.block_size)
        logits = _dense(logits_output).view(*block.shape, -1)
        masked = self._masked(forward_batch)
        known = self._before != self.mask_id
        counts = self.marker.mark(
            torch.cat([self._before, block], 1),
            torch.cat([known, ~masked], 1),
            logits,
            torch.cat([torch.zeros_like(known), _writable(masked, states)], 1),
            offset=known.shape[1],
            at=None,
            prompt_mask=self._known_prompt,
        )
        for slot, count in zip(self._slots, counts, strict=True):
            self._counts[slot].biased += count
        return super().step(forward_batch, logits_output, states)  # type: ignore[misc]

    def _masked(self, forward_batch: Any) -> Tensor:
        """Return [B, block]: what is to be written; a prompt may hold the mask's id itself."""
        masked: Tensor = forward_batch.input_ids.view(-1, self.block_size) == self.mask_id
        prompt = getattr(forward_batch, "dllm_prompt_mask", None)
        return masked if prompt is None else masked & ~prompt

    def _begun(self, slot: int, request: str, start: int, given: Tensor) -> _Block:
        """Return a request's block with the text that is known before it, its own still to come.

        Of a block that is new it came with what is `given` there.
        """
        last = self._blocks.get(slot)
        if last is not None and request and last.request == request:
            if last.start == start:  # it was not done
                return last._replace(text=last.text[: -self.block_size])
            if last.start + self.block_size == start:
                return _Block(request, start, last.text, torch.cat([last.prompt_mask, given]))
        return _Block(request, start, torch.empty(0), given)

    def _count(self, slot: int, request: str, start: int, masks: int) -> None:
        """Count the tokens of a block that is new. A slot's new request ends the one before."""
        block = self._blocks.get(slot)
        same = block is not None and request != "" and block.request == request
        if not same:
            if slot in self._counts:
                self._counts[slot].end()
            self._counts[slot] = RequestCount(self.marker.watermark, self._audit)
        if not same or (block is not None and block.start != start):
            self._counts[slot].tokens += masks

    def _report(self) -> None:
        """Log the count each time it has doubled."""
        if self.marker.biased >= self._report_at:
            self._report_at = 2 * self.marker.biased
            logger.info("dllmark has biased the logits of %d positions", self.marker.biased)


def _end_all(counts: dict[int, RequestCount]) -> None:
    """Write the lines of the last requests."""
    for count in counts.values():
        count.end()


def _to_the_right(rows: list[Tensor], like: Tensor, fill: int) -> Tensor:
    """Return rows of many lengths as one tensor, of the kind of another, filled up on the left."""
    filled = like.new_full((len(rows), max(map(len, rows), default=0)), fill)
    for place, row in zip(filled, rows, strict=True):
        place[len(place) - len(row) :] = row
    return filled


def _algorithm(name: str) -> Any:
    """Return an algorithm of SGLang's, if its interface is one of those that are known."""
    algorithm = algo_name_to_cls.get(name)
    step = getattr(algorithm, "step", None)
    if step is None:
        raise DllmarkError(
            f"this SGLang has no algorithm {name} with a step: pip install '{REQUIREMENT}'"
        )
    given = list(inspect.signature(step).parameters)[1:]
    others = {method for method in dir(algorithm) if "step" in method and method[0] != "_"}
    if given not in STEPS or not others <= STEP_METHODS:
        raise DllmarkError(
            f"this SGLang's {name} has another interface (step takes {', '.join(given)}; methods "
            f"{', '.join(sorted(others))}), so texts could be written unmarked: use a version that "
            "dllmark was tested with"
        )
    return algorithm


def _dense(given: Any) -> Tensor:
    """Return the logits that a step is given: a tensor, or SGLang's output that holds one.

    The main branch may sum up the logits for the algorithm. A summary beside the logits is of
    those without bias, so it is taken away; a summary in their place cannot be marked.
    """
    logits = given if isinstance(given, Tensor) else getattr(given, "full_logits", None)
    if not isinstance(logits, Tensor):
        raise DllmarkError(
            "SGLang handed out a summary in place of its logits (a compact vocabulary state), "
            "which cannot be marked: turn it off, or serve without tensor parallelism"
        )
    if getattr(given, "dllm_vocab_state", None) is not None:
        given.dllm_vocab_state = None
    return logits


class DLLMarkLowConfidence(MarkedAlgorithm, _algorithm("LowConfidence")):  # type: ignore[misc]
    """SGLang's LowConfidence with the watermark: it fills the masks it is sure of."""


class DLLMarkJointThreshold(MarkedAlgorithm, _algorithm("JointThreshold")):  # type: ignore[misc]
    """SGLang's JointThreshold with the watermark: it also edits what is written."""


def _writable(masked: Tensor, states: list[Any]) -> Tensor:
    """Return [B, block]: the masks, or all but the prompt where the algorithm edits its tokens.

    An edit chosen without the watermark would erase it. Such an algorithm keeps what is prompt in
    its state, one for each request or one for all.
    """
    if not states or states[0] is None:
        return masked
    if "prompt_masks" in states[0]:
        prompt: Tensor = states[0]["prompt_masks"]
    else:
        prompt = torch.stack([state["prompt_mask"] for state in states])
    return ~prompt


def _marker(config: Any) -> Marker:
    """Read the watermark's settings from --dllm-algorithm-config; without a key, refuse."""
    given = config.algorithm_config.get("dllmark")
    if not isinstance(given, dict) or not isinstance(given.get("key"), str):
        raise DllmarkError(
            f"the watermark has no key: add to the file of --dllm-algorithm-config\n{EXAMPLE}"
        )
    if unknown := given.keys() - SETTINGS:
        raise DllmarkError(
            f"dllmark has no setting {', '.join(sorted(map(str, unknown)))} in the file of "
            f"--dllm-algorithm-config: there are {', '.join(sorted(SETTINGS))}"
        )
    delta = given.get("delta")
    if not isinstance(given.get("audit"), str | None):
        raise DllmarkError("the setting audit of dllmark is the path of a file")
    if isinstance(delta, bool) or not isinstance(delta, int | float | None):
        raise DllmarkError("the setting delta of dllmark is a number")
    marker = Marker(
        given["key"],
        given.get("strategy", ENGINE_DEFAULT.name),
        delta,
        tokenizer=given.get("tokenizer"),
        mask_id=config.mask_id,
    )
    marker.idle = False  # a server may end without having been asked for anything
    logger.info("dllmark marks with key %s", marker.watermark.identity.key_id)
    return marker
