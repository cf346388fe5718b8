"""In-flight depths as they were measured on links, and what the simulator says of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pandas import DataFrame

from benchmarks.in_flight.simulated import speed_text
from drlpp.io.formatting import seconds_text
from drlpp.simulator import Depth, smallest_depth


@dataclass(frozen=True)
class Row:
    """A pipeline on links of one speed.

    Attributes:
        bits_per_second: of every link between hosts, each way, as asked for.
        message_bytes: of a message between two stages.
        message_seconds: that it took with nothing else on the link.
        turns: of every repetition the seconds per minibatch with NOAM, one more per link, …
        simulated: the same depths, and deeper ones that ``--in-flight auto`` looks at too.
    """

    bits_per_second: float
    message_bytes: int
    message_seconds: float
    turns: tuple[tuple[float, ...], ...]
    simulated: tuple[Depth, ...]

    @property
    def asked_message_seconds(self) -> float:
        """What a message should take."""
        return 8 * self.message_bytes / self.bits_per_second

    @property
    def noam_seconds(self) -> float:
        """Per minibatch with NOAM, measured: the median of the turns."""
        return statistics.median(turn[0] for turn in self.turns)

    @property
    def speed_ups(self) -> tuple[float, ...]:
        """Of every deeper one over NOAM, measured: medians of the ratios within a turn."""
        return tuple(map(statistics.median, zip(*self._ratios, strict=True)))

    @property
    def spread(self) -> float:
        """How far from its median the speed-up within a turn was at most, relative to it."""
        return max(
            abs(ratio / median - 1)
            for turn in self._ratios
            for ratio, median in zip(turn, self.speed_ups, strict=True)
        )

    @property
    def simulated_speed_ups(self) -> tuple[float, ...]:
        """Of the depths that were measured."""
        noam, *deeper = (depth.seconds_per_minibatch for depth in self.simulated)
        return tuple(noam / seconds for seconds in deeper[: len(self.speed_ups)])

    @property
    def automatic(self) -> Depth:
        """What ``--in-flight auto`` takes."""
        return smallest_depth(self.simulated)

    @property
    def _ratios(self) -> list[list[float]]:
        """By turn and depth."""
        return [[noam / seconds for seconds in deeper] for noam, *deeper in self.turns]


def table_of(rows: Iterable[Row]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame(map(_texts, rows))


def _texts(row: Row) -> dict[str, str]:
    noam, automatic = row.simulated[0].seconds_per_minibatch, row.automatic
    asked = seconds_text(row.asked_message_seconds)
    speed_ups = zip(row.speed_ups, row.simulated_speed_ups, strict=True)
    return {
        "links": speed_text(row.bits_per_second),
        "one message (asked)": f"{seconds_text(row.message_seconds)} ({asked})",
        "NOAM (simulated)": f"{seconds_text(row.noam_seconds)} ({seconds_text(noam)})",
        **{
            f"{number} per link (simulated)": f"{measured:.2f}× ({simulated:.2f}×)"
            for number, (measured, simulated) in enumerate(speed_ups, 1)
        },
        "turns within": f"{row.spread:.0%}",
        "auto": f"{automatic.per_link} ({'-'.join(map(str, automatic.in_flight))})",
    }


def as_plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as JSON has them, with what follows from the measurements."""
    return [
        asdict(row)
        | {
            "asked_message_seconds": row.asked_message_seconds,
            "noam_seconds": row.noam_seconds,
            "speed_ups": row.speed_ups,
            "simulated_speed_ups": row.simulated_speed_ups,
            "spread": row.spread,
            "automatic_per_link": row.automatic.per_link,
        }
        for row in rows
    ]
