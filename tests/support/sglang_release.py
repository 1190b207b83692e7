"""SGLang's own code of the release in constraints.txt, without the parts that need a GPU.

`make test` unpacks the package into `.venv/sglang` without its dependencies, which need CUDA and
another torch. Of it, the plugin loader, the dLLM algorithms and their configuration run as they
are. What these import from the rest of SGLang is in `REPLACED`, and `Server` stands for the
scheduler and the model runner. SGLang's `__init__`, which patches transformers, is not run.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

RELEASE = Path(sys.prefix) / "sglang"


class ModelConfig:
    """Says what a checkpoint of LLaDA2 would."""

    @staticmethod
    def from_server_args(server_args, **options):
        return SimpleNamespace(hf_config=SimpleNamespace(architectures=["LLaDA2MoeModelLM"]))


REPLACED = {
    "sglang.srt.arg_groups.overrides": {"resolving_view": lambda server_args: server_args},
    "sglang.srt.configs.model_config": {"ModelConfig": ModelConfig},
    "sglang.srt.layers.logits_processor": {"LogitsProcessorOutput": SimpleNamespace},
    "sglang.srt.model_executor.forward_batch_info": {"ForwardBatch": SimpleNamespace},
    "sglang.srt.model_executor.model_runner": {"ModelRunner": object},
    "sglang.srt.server_args": {"ServerArgs": SimpleNamespace},
    "sglang.srt.utils": {"is_npu": lambda: False},
}
"""What the dLLM code imports from the rest of SGLang: by name, all that it uses of each module."""


def install(monkeypatch):
    """Make `import sglang.srt.dllm` find SGLang's own, imported afresh; return its algorithms."""
    if not (RELEASE / "sglang").is_dir():
        pytest.skip("SGLang has no wheel for this machine, or `make test` has not unpacked it")
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dllmark.integrations.sglang", raising=False)
    package = ModuleType("sglang")
    package.__path__ = [str(RELEASE / "sglang")]
    monkeypatch.setitem(sys.modules, "sglang", package)
    for name, contents in REPLACED.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    importlib.import_module("sglang.srt.plugins")
    table = importlib.import_module("sglang.srt.dllm.algorithm").algo_name_to_cls
    for name in [name for name in sys.modules if name.startswith("sglang.")]:
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))  # gone with the test
    return table


def load_plugins():
    """Load the plugins as each process of SGLang does, with its own loader."""
    importlib.import_module("sglang.srt.plugins").load_plugins()


def load_plugin():
    """Load and call the plugin alone, so that what it raises is seen."""
    [plugin] = entry_points(group="sglang.srt.plugins", name="dllmark")
    plugin.load()()


def config(algorithm_config, block_size=8, mask_id=2, fdfo=False):
    """The algorithm's configuration, as the server builds it from its arguments and the YAML."""
    made = importlib.import_module("sglang.srt.dllm.config").DllmConfig
    return made(
        algorithm="any", algorithm_config=algorithm_config, block_size=block_size, mask_id=mask_id,
        max_running_requests=1, first_done_first_out_mode=fdfo,
    )  # fmt: skip


class Server:
    """In place of SGLang's scheduler and model runner: serves block by block what a toy writes."""

    def __init__(self, algorithm, model):
        self.algorithm, self.model = algorithm, model

    def forward(self, batch, pp_proxy_tensors=None):
        """Do what SGLang's model runner does: it returns the logits of each request's block."""
        size = self.algorithm.block_size
        logits = [
            self.model(torch.cat([before, block])[None]).logits[0, -size:]
            for before, block in zip(batch.before, batch.input_ids.view(-1, size), strict=True)
        ]
        return SimpleNamespace(
            logits_output=SimpleNamespace(full_logits=torch.cat(logits)), can_run_graph=False
        )

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
