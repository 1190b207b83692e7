"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the classes of durations: detections take milliseconds, generations a minute."""


class Metrics:
    """Requests and how long they took, verdicts, generations, and what is going on now.

    Each server has a registry of its own, so that several in one process do not add up.

    >>> metrics = Metrics()
    >>> metrics.detections.labels("watermarked").inc()
    >>> b'dllmark_detections_total{verdict="watermarked"} 1.0' in metrics.render()
    True
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dllmark_requests", "Requests answered.", ["method", "path", "status"],
            registry=registry,
        )  # fmt: skip
        self.request_seconds = Histogram(
            "dllmark_request_seconds", "How long requests took.", ["path"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.detections = Counter(
            "dllmark_detections", "Texts checked.", ["verdict"], registry=registry
        )
        self.generations = Counter(
            "dllmark_generations", "Generations ended.", ["outcome"], registry=registry
        )
        self.upstream_texts = Counter(
            "dllmark_upstream_texts", "Texts of the upstream, by what detection says of them.",
            ["verdict"], registry=registry,
        )  # fmt: skip
        self.tokens = Counter("dllmark_tokens", "Tokens written.", registry=registry)
        self.pending = Gauge(
            "dllmark_generations_pending", "Generations that run or wait.", registry=registry
        )

    def render(self) -> bytes:
        """Return everything in the text format that Prometheus reads."""
        return generate_latest(self._registry)
