"""Links corrected by what single messages took: latency and bandwidth of every level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.random import Generator

from drlpp.costs.stage_work import Array
from drlpp.placement.measurement import LinkUsage
from drlpp.specs.cluster import Cluster, Link

_SMALLEST_LATENCY = 1e-6
_WIDEST = 0.5
"""The largest standard deviation of a logarithm that is drawn from."""


@dataclass(frozen=True)
class LinkCorrection:
    """Factors of a level's latency and seconds per byte: their mean and covariance."""

    mean: Array
    covariance: Array

    @classmethod
    def of(
        cls, cluster: Cluster, usages: Sequence[LinkUsage], noise: float, spread: float
    ) -> LinkCorrection:
        """Compute them by least squares over the messages' relative errors.

        What a host's own network adds is taken as declared.

        Args:
            cluster: as declared.
            usages: of one level.
            noise: standard deviation of the logarithm of a measured time.
            spread: of a factor, before anything is measured.
        """
        prior = (noise / spread) ** 2
        normal, right = prior * numpy.eye(2), numpy.full(2, prior)
        if usages:
            seconds = numpy.array([usage.seconds for usage in usages])
            ways = [cluster.link(usage.sender, usage.receiver) for usage in usages]
            latencies = numpy.array([max(way.latency_seconds, _SMALLEST_LATENCY) for way in ways])
            bandwidths = numpy.array([way.bandwidth_bytes_per_second for way in ways])
            sizes = numpy.array([usage.bytes_ for usage in usages])
            parts = numpy.stack([latencies, sizes / bandwidths], axis=1)
            relative = parts / seconds[:, None]
            normal = normal + relative.T @ relative
            right = right + relative.T @ numpy.ones(len(usages))
        mean = numpy.clip(numpy.linalg.solve(normal, right), 1e-3, 1e3)
        return cls(mean, numpy.asarray(noise**2 * numpy.linalg.inv(normal), dtype=float))

    def drawn(self, draw: Generator) -> Array:
        """Draw factors; they are above 0."""
        relative = self.covariance / numpy.outer(self.mean, self.mean)
        # What is hardly known is drawn within bounds, and that both are off together is kept.
        deviation = numpy.sqrt(numpy.diag(relative))
        narrow = numpy.minimum(1.0, _WIDEST / numpy.maximum(deviation, 1e-12))
        relative = relative * numpy.outer(narrow, narrow)
        logs = draw.multivariate_normal(numpy.zeros(2), relative, method="svd")
        factors: Array = self.mean * numpy.exp(logs)
        return factors


def corrected(link: Link, factors: Array) -> Link:
    """Return a link with other latency and seconds per byte."""
    latency, inverse_bandwidth = factors
    return Link(
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / float(inverse_bandwidth),
        latency_seconds=max(link.latency_seconds, _SMALLEST_LATENCY) * float(latency),
    )
