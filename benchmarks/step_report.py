"""The result of step.py as Markdown and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMES = {"llada": "LLaDA-8B", "dream": "Dream-7B"}
SHOWN = ("official step", "our step", "our step, predictive-bidirectional",
         "our step, expected-bidirectional", "our step, guided-bidirectional")  # fmt: skip
Result = dict[str, Any]


def floor(result: Result, model: str, batch: str) -> float:
    """Return the least milliseconds a step can take: reading the weights, or the operations."""
    rates, shape = result["machine"], result["models"][model]
    reading = shape["weights MB"] * 1e6 / rates["bytes"]
    computing = shape["batches"][batch]["operations"] / rates["flops"]
    return 1e3 * max(reading, computing)


def steps_table(result: Result, model: str) -> str:
    """Return every measured step of a model, in milliseconds and against the official one."""
    batches = result["models"][model]["batches"]
    head = " | ".join(f"batch {batch}, ms | of the official | peak MB" for batch in batches)
    lines = [f"| {NAMES[model]} | {head} |", "| --- |" + " --- |" * (3 * len(batches))]
    for name in next(iter(batches.values()))["steps"]:
        cells = []
        for row in batches.values():
            found, official = row["steps"][name], row["steps"]["official step"]["ms"]
            cells += [f"{found['ms']:.3f}", f"{100 * found['ms'] / official:.1f} %",
                      f"{found.get('peak MB', 0):.0f}"]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    least = [f"{floor(result, model, batch):.3f} | | " for batch in batches]
    lines.append(f"| *floor of the machine* | {'| '.join(least)} |")
    return "\n".join(lines)


def watermark_table(result: Result, model: str) -> str:
    """Return what each watermark costs alone, and as a share of our step without it."""
    batches = result["models"][model]["batches"]
    head = " | ".join(f"batch {batch}, µs | of a step | worst, µs" for batch in batches)
    lines = [f"| {NAMES[model]} | {head} |", "| --- |" + " --- |" * (3 * len(batches))]
    for name in next(iter(batches.values()))["watermark alone"]:
        cells = []
        for row in batches.values():
            found, step = row["watermark alone"][name], row["steps"]["our step"]["ms"]
            cells += [f"{1e3 * found['ms']:.1f}", f"{100 * found['ms'] / step:.2f} %",
                      f"{1e3 * found['worst ms']:.1f}"]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = []
    for row in batches.values():
        reference = row["steps"]["reference watermark"]["ms"]
        ours = row["watermark alone"]["predictive-bidirectional"]["ms"]
        cells += [f"{1e3 * reference:.0f}", f"{reference / ours:.0f} times ours", ""]
    lines.append(f"| *the reference's* | {' | '.join(cells)} |")
    return "\n".join(lines)


def _kept(result: Result) -> float:
    """Return the most memory that a watermark keeps."""
    batches = [row for model in result["models"].values() for row in model["batches"].values()]
    return max(found["kept MB"] for row in batches for found in row["watermark alone"].values())


def page(result: Result) -> str:
    """Return the whole result as Markdown."""
    rates = result["machine"]
    lines = [
        f"Ran: {result['ran']}. A matrix product ran at {rates['flops'] / 1e12:.0f} TFLOP/s, "
        f"a copy at {rates['bytes'] / 1e12:.2f} TB/s.",
        "",
        "## Steps",
        "",
        "`forward` and `official step` run by torch's own operations, one after the other, as the "
        "published code does. On a GPU, `forward, fused` has our kernels for rotation, gate and "
        "norm, and our steps have them too and are CUDA graphs.",
        *(f"\n{steps_table(result, model)}" for model in result["models"]),
        "",
        "## The watermark alone",
        "",
        "The mean over the 32 steps of a block that is filled in a random order, and the worst "
        "step, where none is revealed. Every prediction has eight tokens of the same probability, "
        "which are the ones that may be drawn. guided-bidirectional biases every masked position "
        f"of the block, and then the chosen one. At most {_kept(result):.2f} MB stay in memory.",
        *(f"\n{watermark_table(result, model)}" for model in result["models"]),
        "",
        "## Colouring pairs for detection",
        "",
        *(f"- {name}: {value:,.0f}" for name, value in result["colouring"].items()),
    ]
    return "\n".join(lines) + "\n"


def draw(result: Result, path: Path) -> None:
    """Draw the steps of each model beside the official one, which is 100 %."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = result["models"]
    measured = next(iter(next(iter(models.values()))["batches"].values()))["steps"]
    shown = [name for name in SHOWN if name in measured]
    figure, axes = pyplot.subplots(1, len(models), figsize=(5.5 * len(models), 4.4), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        batches = models[model]["batches"]
        for place, name in enumerate(shown):
            heights = [100 * row["steps"][name]["ms"] / row["steps"]["official step"]["ms"]
                       for row in batches.values()]  # fmt: skip
            axis.bar([at + 0.16 * place for at in range(len(batches))], heights, 0.14, label=name)
        for at, batch in enumerate(batches):
            official = batches[batch]["steps"]["official step"]["ms"]
            least = 100 * floor(result, model, batch) / official
            axis.plot(
                [at - 0.08, at + 0.72], [least, least], "k--", label="floor" if not at else None
            )
        axis.set_xticks([at + 0.32 for at in range(len(batches))], [f"batch {b}" for b in batches])
        axis.set_title(NAMES[model])
        axis.set_ylabel("time of a step, % of the official one")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncol=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=150)


def report(result: Result, folder: Path) -> None:
    """Write step.md, and step.png where matplotlib is installed."""
    (folder / "step.md").write_text(page(result), encoding="utf-8")
    try:
        draw(result, folder / "step.png")
    except ImportError:
        print(f"no plot: pip install matplotlib, then python benchmarks/step.py --draw {folder}")
