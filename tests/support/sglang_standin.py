"""A stand-in for the dLLM interface of SGLang 0.5.23, which needs a GPU to install and run.

Written from reading `sglang.srt.dllm.algorithm`; it holds what the plugin touches and no more:
the table of algorithms, an algorithm's `__init__(config)`, `run(model_runner, forward_batch,
algo_states)` and `step(forward_batch, full_logits, states)`, and the fields of a batch. Blocks have
a fixed size; a batch holds one block of each request, flat. A block that is all prompt goes through
`run` as well. With first-done-first-out, `run` takes one step of each block.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace

import torch


class Algorithm:
    def __init__(self, config):
        self.block_size, self.mask_id = config.block_size, config.mask_id
        self.fdfo = config.first_done_first_out_mode

    def init_step_state(self, forward_batch):
        return [None] * forward_batch.batch_size

    def run(self, model_runner, forward_batch, algo_states=None):
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        if self.fdfo:
            fresh = self.init_step_state(forward_batch)
            states = [old or new for old, new in zip(algo_states, fresh, strict=True)]
            logits = model_runner.forward(forward_batch)
            done = self.step(forward_batch, logits, states)
            kept = [None if ended else state for ended, state in zip(done, states, strict=True)]
            return None, blocks.tolist(), [self.block_size * ended for ended in done], kept, False
        logits = model_runner.forward(forward_batch)
        if not (blocks == self.mask_id).any():
            return None, [], None, None, False
        states = self.init_step_state(forward_batch)
        while not all(self.step(forward_batch, logits, states)):
            logits = model_runner.forward(forward_batch)
        return None, blocks.tolist(), None, None, False


class LowConfidence(Algorithm):
    """Fills the masks it is sure of, at least one."""

    def __init__(self, config):
        super().__init__(config)
        self.threshold = config.algorithm_config.get("threshold", 0.95)

    def step(self, forward_batch, full_logits, states):
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        sure, best = full_logits.softmax(-1).view(*blocks.shape, -1).max(-1)
        done = []
        for row, block in enumerate(blocks):
            masked = block == self.mask_id
            done.append(not masked.any())
            if masked.any():
                certain = sure[row].masked_fill(~masked, -1)
                chosen = (certain > self.threshold) | (certain == certain.max())
                block[chosen] = best[row][chosen]
        return done


class JointThreshold(Algorithm):
    """Fills masks, and edits what is written wherever it is sure of another token."""

    def __init__(self, config):
        super().__init__(config)
        self.threshold = config.algorithm_config.get("threshold", 0.5)
        self.edit_threshold = config.algorithm_config.get("edit_threshold", 0)
        self.edits = config.algorithm_config.get("max_post_edit_steps", 16)
        self.shared = config.algorithm_config.get("vectorized_decoding", False) and not self.fdfo

    def init_step_state(self, forward_batch):
        prompt = forward_batch.input_ids.view(-1, self.block_size) != self.mask_id
        if self.shared:
            return [{"prompt_masks": prompt, "left": [self.edits] * len(prompt)}] * len(prompt)
        return [{"prompt_mask": row, "left": self.edits} for row in prompt]

    def step(self, forward_batch, full_logits, states):
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        sure, best = full_logits.softmax(-1).view(*blocks.shape, -1).max(-1)
        done = []
        for row, (block, state) in enumerate(zip(blocks, states, strict=True)):
            prompt = state["prompt_masks"][row] if self.shared else state["prompt_mask"]
            masked = block == self.mask_id
            left = state["left"][row] if self.shared else state["left"]
            chosen = ~masked & ~prompt & (sure[row] > self.edit_threshold) & (best[row] != block)
            if masked.any():
                certain = sure[row].masked_fill(~masked, -1)
                chosen |= masked & ((certain > self.threshold) | (certain == certain.max()))
            else:
                left -= 1
            if self.shared:
                state["left"][row] = left
            else:
                state["left"] = left
            done.append(left < 0 or not chosen.any())
            if not done[-1]:
                block[chosen] = best[row][chosen]
        return done


def install(monkeypatch, algorithms=(LowConfidence, JointThreshold)):
    """Put the stand-in where `import sglang.srt.dllm.algorithm` finds it; return its table.

    The plugin, which imports it, is then to be imported afresh.
    """
    monkeypatch.delitem(sys.modules, "dllmark.integrations.sglang", raising=False)
    module = ModuleType("sglang.srt.dllm.algorithm")
    module.algo_name_to_cls = {one.__name__: one for one in algorithms}
    for name in ("sglang", "sglang.srt", "sglang.srt.dllm"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.algo_name_to_cls


def load_plugin():
    """Load and call the plugin as SGLang does; return its module."""
    [plugin] = entry_points(group="sglang.srt.plugins", name="dllmark")
    plugin.load()()
    return sys.modules[plugin.module]


def config(algorithm_config, block_size=8, mask_id=2, fdfo=False):
    """The algorithm's configuration, as the server builds it from its arguments and the YAML."""
    return SimpleNamespace(
        algorithm_config=algorithm_config, block_size=block_size, mask_id=mask_id,
        first_done_first_out_mode=fdfo,
    )  # fmt: skip


class Server:
    """Serves requests block by block with an algorithm and a toy model; keeps no prefix cache."""

    def __init__(self, algorithm, model):
        self.algorithm, self.model = algorithm, model

    def forward(self, batch):
        """Return the logits of each request's block, which depend on all tokens before it."""
        size = self.algorithm.block_size
        logits = [
            self.model(torch.cat([before, block])[None]).logits[0, -size:]
            for before, block in zip(batch.before, batch.input_ids.view(-1, size), strict=True)
        ]
        return torch.cat(logits)

    def serve(self, prompts, blocks, skip=0):
        """Return each prompt with what was written after it; the first blocks may be skipped.

        A batch holds the current block of each request, and each moves on once its block is done.
        """
        size, mask = self.algorithm.block_size, self.algorithm.mask_id
        whole = [len(prompt) // size + blocks for prompt in prompts]
        texts = [
            torch.cat([prompt, torch.full((count * size - len(prompt),), mask)])
            for prompt, count in zip(prompts, whole, strict=True)
        ]
        at, states = [skip] * len(texts), [None] * len(texts)
        while rows := [row for row, count in enumerate(whole) if at[row] < count]:
            parts = [(row, slice(at[row] * size, at[row] * size + size)) for row in rows]
            batch = SimpleNamespace(
                batch_size=len(rows),
                input_ids=torch.cat([texts[row][span] for row, span in parts]),
                positions=torch.cat([torch.arange(span.start, span.stop) for _, span in parts]),
                req_pool_indices=torch.tensor(rows) + 1,
                rids=[f"request {row}" for row in rows],
                dllm_prompt_mask=None,
                before=[texts[row][: span.start] for row, span in parts],
            )
            _, _, accepted, kept, _ = self.algorithm.run(self, batch, [states[r] for r in rows])
            for number, (row, span) in enumerate(parts):
                texts[row][span] = batch.input_ids[number * size : number * size + size]
                states[row] = None if kept is None else kept[number]
                at[row] += accepted is None or accepted[number] == size
        return texts
