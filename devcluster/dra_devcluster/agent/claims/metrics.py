"""How many claims the node has prepared, under the names that a kubelet has for it (kubelet-manager.md section 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .claim_info import ClaimInfo

ANY_DRIVER = "<any>"


class ClaimsInUse(Collector):
    """Counts the prepared claims at each scrape, per driver and in all."""

    def __init__(self, claims: Iterable[ClaimInfo]) -> None:
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        """The counts of this moment."""
        prepared = [claim for claim in self._claims if claim.prepared]
        counts = Counter(driver for claim in prepared for driver in claim.drivers)
        counts[ANY_DRIVER] = len(prepared)
        gauge = GaugeMetricFamily(
            "dra_resource_claims_in_use", "Claims that are prepared on the node.", labels=["driver_name"]
        )
        for driver, count in sorted(counts.items()):
            gauge.add_metric([driver], count)
        yield gauge
