"""The fastest chain of downsets where workers share cores: less work counts, not only even work.

Workers that are more than their cores take turns (:mod:`drlpp.costs.stage_cost`), so a chain also
needs the *load* of all its stages, what they compute for a minibatch, divided by the cores. Loads
add up. So the dynamic program asks, for a limit on every stage, every downset and every way to take
accelerators: what is the least load of all that is behind? As the limit grows, that load falls. The
optimum is where the two meet: at a stage's cost, or at the least load within the cost below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import StageSeconds
from drlpp.costs.stage_work import Array
from drlpp.planners.exact.chain_search import ROUNDING, Chain, ChainSearch


class SharedCores(ChainSearch):
    """The search where accelerators, alike or not, share fewer cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs, fleet = self.pairs, self.fleet
        assert fleet.cores is not None
        self._cores = fleet.cores
        speeds = numpy.array([speed for speed, _ in fleet.kinds])
        # (choices, stages): what all replicas of a stage compute for a minibatch.
        self._load = numpy.array(
            [
                StageSeconds.busy(pairs.work, sum(counts)) * (numpy.array(counts) / speeds).sum()
                for counts in fleet.choices
            ]
        )
        self._offsets = numpy.array([fleet.index(counts) for counts in fleet.choices])
        self._target = self._offsets[:, None] + numpy.arange(fleet.states)[None, :]

    def _improved(self, best: Chain, low: float, deadline: float, precision: float) -> Chain:
        # No stage may be the slowest part: then it is the load of a chain within the bound.
        found = self.within(low)
        if found is not None:
            best = min(best, found, key=lambda chain: chain.seconds)
        best = super()._improved(best, low, deadline, precision)
        # As fast with fewer accelerators.
        return self.within(best.seconds * (1 + ROUNDING)) or best

    def within(self, limit: float) -> Chain | None:
        """Return a chain none of whose stages takes longer than ``limit`` seconds per minibatch.

        Among those whose load keeps to the limit as well, it is one with the fewest accelerators.
        If there is none, it is the one with the least load.
        """
        program = self._program(limit)
        loads = program.loads[0]
        if not numpy.isfinite(loads).any():
            return None
        most = max(self._cores * limit, float(loads.min()) * (1 + ROUNDING))
        states = numpy.flatnonzero(numpy.isfinite(loads) & (loads <= most))
        state = min(states, key=lambda state: (self.fleet.sizes[state], loads[state]))
        return self._trace(program, int(state))

    def _program(self, limit: float) -> _Program:
        """Find the least load of what is behind every downset.

        It is found for every way to take accelerators.
        """
        pairs, fleet = self.pairs, self.fleet
        allowed = (self._distinct <= limit)[self._row]
        loads = numpy.full((len(pairs.downsets), fleet.states), numpy.inf)
        loads[-1, 0] = 0.0
        for i in range(len(pairs.downsets) - 2, -1, -1):
            stages = slice(int(pairs.first[i]), int(pairs.first[i + 1]))
            least = self._sums(allowed, loads, stages).min(axis=1)
            numpy.minimum.at(loads[i], self._target[fleet.fits], least[fleet.fits])
        return _Program(allowed, loads)

    def _sums(self, allowed: NDArray[numpy.bool_], loads: Array, stages: slice) -> Array:
        """Return the load of a stage and of what is behind it, ``(choices, stages, states)``."""
        load = numpy.where(allowed[:, stages], self._load[:, stages], numpy.inf)
        sums: Array = load[:, :, None] + loads[self.pairs.end[stages]][None]
        if self.fleet.limits_memory:
            room = self.fleet.sizes[None, None, :] <= self._most_behind[:, stages, None]
            sums = numpy.where(room, sums, numpy.inf)
        return sums

    def _trace(self, program: _Program, state: int) -> Chain:
        """Return a way through the program with the least load, with long stages first."""
        pairs, fleet = self.pairs, self.fleet
        stages_found, choices_found, at = [], [], 0
        while at < len(pairs.downsets) - 1:
            stages = slice(int(pairs.first[at]), int(pairs.first[at + 1]))
            sums = self._sums(program.allowed, program.loads, stages)
            before = state - self._offsets
            possible = numpy.flatnonzero(before >= 0)
            possible = possible[fleet.fits[possible, before[possible]]]
            least = sums[possible, :, before[possible]]
            good = least <= program.loads[at, state] * (1 + ROUNDING)
            stage = int(numpy.flatnonzero(good.any(axis=0))[-1])
            choice = int(possible[good[:, stage].argmax()])
            stages_found.append(stages.start + stage)
            choices_found.append(choice)
            state -= int(self._offsets[choice])
            at = int(pairs.end[stages.start + stage])
        chain = self._chain(stages_found, choices_found)
        load = float(self._load[choices_found, stages_found].sum())
        return Chain(chain.stages, chain.accelerators, max(chain.seconds, load / self._cores))


@dataclass(frozen=True)
class _Program:
    """``allowed``: ``(choices, stages)`` within the limit; ``loads``: ``(downsets, states)``."""

    allowed: NDArray[numpy.bool_]
    loads: Array
