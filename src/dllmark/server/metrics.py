"""What the server counted, in the text format that Prometheus reads.

The few counters here need no registry, labels API or process collector, so there is no dependency
for them. They are changed on the event loop only, hence no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the classes of durations, in seconds."""

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Requests and how long they took, verdicts, generations, and what is going on now.

    >>> metrics = Metrics()
    >>> metrics.verdicts["watermarked"] += 1
    >>> 'dllmark_detections_total{verdict="watermarked"} 1' in metrics.render(0)
    True
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.generations: Counter[str] = Counter()
        self.tokens = 0
        self._classes: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self._seconds: dict[str, float] = defaultdict(float)

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self.requests[method, path, status] += 1
        self._classes[path][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[path] += seconds

    def render(self, held: int) -> str:
        """Return everything as text; `held` generations run or wait now."""
        lines = [
            *_family("requests_total", "counter", "Requests answered.", {
                (("method", method), ("path", path), ("status", str(status))): count
                for (method, path, status), count in self.requests.items()
            }),
            *_family("detections_total", "counter", "Texts checked.", {
                (("verdict", verdict),): count for verdict, count in self.verdicts.items()
            }),
            *_family("generations_total", "counter", "Generations ended.", {
                (("outcome", outcome),): count for outcome, count in self.generations.items()
            }),
            *_family("tokens_total", "counter", "Tokens written.", {(): self.tokens}),
            *_family("generations_held", "gauge", "Generations that run or wait.", {(): held}),
            *self._durations(),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _durations(self) -> Iterator[str]:
        """Yield the histogram of durations: for each bound, how many requests took no longer."""
        name = "dllmark_request_seconds"
        yield f"# HELP {name} How long requests took."
        yield f"# TYPE {name} histogram"
        for path, classes in self._classes.items():
            label, total = f'path="{path}"', 0
            for bound, count in zip([*BUCKETS, "+Inf"], classes, strict=True):
                total += count
                yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
            yield f"{name}_count{{{label}}} {total}"
            yield f"{name}_sum{{{label}}} {self._seconds[path]:.6f}"


def _family(name: str, kind: str, about: str, values: dict[Labels, int]) -> Iterator[str]:
    """Yield the lines of one metric. Its labels are ours, never a client's: none needs quoting."""
    yield f"# HELP dllmark_{name} {about}"
    yield f"# TYPE dllmark_{name} {kind}"
    for labels, value in values.items():
        inside = ",".join(f'{label}="{content}"' for label, content in labels)
        yield f"dllmark_{name}{{{inside}}} {value}" if inside else f"dllmark_{name} {value}"
