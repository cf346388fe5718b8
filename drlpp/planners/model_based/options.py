"""What the search by measuring does, and how long: each part may be left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The parts of the search, each of which may be left out.

    Attributes:
        planners: begin with what planners find, with the declared costs and with corrected ones,
            and measure data parallelism second, which tells all speeds.
        calibrate: correct the costs by busy times, link times and memory.
        discrepancy: correct the simulator by how far measured seconds are off.
        thompson: draw uncertain costs; otherwise the most probable ones are the only draw.
        neighbours: propose small changes of the best once no draw has anything faster.
        evaluations: how many candidates a long search looks at after a measurement: the one with
            the most probable costs, and, where little is left to gain, those in four draws; brief
            ones in all draws look at an eighth of these, the one before all measurements at four
            times as many.
        draws: of the costs.
        gain: propose nothing more once the part of the seconds that is expected to be saved by the
            best of each draw is smaller; 0 for never.
        confirmations: so many beliefs in a row must agree on that, each after something new was
            measured: searches in draws may all overlook what the next measurement shows.
        patience: propose nothing more after this many measurements in a row that made the best no
            more than 0.1% faster; 0 for never.
    """

    planners: bool = True
    calibrate: bool = True
    discrepancy: bool = True
    thompson: bool = True
    neighbours: bool = True
    evaluations: int = 600
    draws: int = 16
    gain: float = 0.005
    confirmations: int = 2
    patience: int = 12
