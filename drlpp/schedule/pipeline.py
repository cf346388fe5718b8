"""The shape of a placement: which workers hold each stage, and which stages exchange tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

from drlpp.schedule.per_stage import of_links


@dataclass(frozen=True, slots=True)
class StageEdge:
    """Stage ``target`` reads tensors of stage ``source``.

    ``differentiable`` says whether gradients flow back; they do not for integers and masks.
    """

    source: int
    target: int
    differentiable: bool = True


def are_folded(holders: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the holders of stages hold two each, there and back, without replicas."""
    there, back = holders[: len(holders) // 2], holders[len(holders) // 2 :]
    return (
        len(there) > 1
        and tuple(there) == tuple(back)[::-1]
        and all(len(workers) == 1 for workers in there)
        and len(set(there)) == len(there)
    )


def senders_to_all(senders: Sequence[int], receivers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (sender, receiver) for what all ``senders`` have alike and each of ``receivers`` gets.

    Senders take turns. What is on the worker already is not sent.
    """
    for number, receiver in enumerate(receivers):
        sender = senders[number % len(senders)]
        if sender != receiver:
            yield sender, receiver


@dataclass(frozen=True)
class Pipeline:
    """Stages in a topological order of the stage graph.

    ``stages[k]`` are the workers that hold stage k (its replicas, in round-robin order). A worker
    holds one stage, or two where the pipeline is folded: each worker then holds the k-th stage from
    the beginning and the k-th from the end. Each of ``ties`` names the stages, in order, that hold
    copies of the same weights.
    """

    stages: tuple[tuple[int, ...], ...]
    edges: tuple[StageEdge, ...]
    ties: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def connecting(
        cls,
        stages: Iterable[tuple[int, ...]],
        crossing: Iterable[tuple[int, int, bool]],
        ties: Iterable[tuple[int, ...]] = (),
    ) -> Pipeline:
        """Return stages that exchange tensors.

        Args:
            stages: the workers of each.
            crossing: for every tensor the stage that it comes from, the one that it goes to, and
                whether its gradient comes back; what stays in a stage does not count.
            ties: the stages that hold copies of the same weights, for every set of such stages.
        """
        differentiable: dict[tuple[int, int], bool] = {}
        for source, target, returns in crossing:
            if source != target:
                known = differentiable.get((source, target), False)
                differentiable[source, target] = known or returns
        edges = (StageEdge(*edge, returns) for edge, returns in sorted(differentiable.items()))
        return cls(tuple(stages), tuple(edges), tuple(ties))

    @classmethod
    def straight(cls, *replicas: int) -> Pipeline:
        """Return a chain of stages with these numbers of replicas, workers numbered in order."""
        stages, first = [], 0
        for count in replicas:
            stages.append(tuple(range(first, first + count)))
            first += count
        edges = tuple(StageEdge(k, k + 1) for k in range(len(replicas) - 1))
        return cls(tuple(stages), edges)

    @cached_property
    def numbered(self) -> Pipeline:
        """The same shape with workers numbered stage by stage: equal for all that are run alike."""
        numbers = {worker: number for number, worker in enumerate(self.stages_by_worker)}
        stages = (tuple(numbers[worker] for worker in workers) for workers in self.stages)
        return Pipeline(tuple(stages), self.edges, self.ties)

    @property
    def workers(self) -> tuple[int, ...]:
        """All workers, sorted."""
        return tuple(sorted({worker for stage in self.stages for worker in stage}))

    @cached_property
    def routes(self) -> tuple[tuple[int, int], ...]:
        """From which worker to which messages go in a long run, whatever the schedule; sorted.

        Replicas take parts in turns, so of m and n replicas those meet whose numbers are the same
        modulo the greatest common divisor of m and n. Of stages that hold copies of the same
        weights, each replica of one gets the gradients of one replica of another.
        """
        found: set[tuple[int, int]] = set()
        for source, target in (pair for tied in self.ties for pair in permutations(tied, 2)):
            found.update(senders_to_all(self.stages[source], self.stages[target]))
        for edge in self.edges:
            sources, targets = self.stages[edge.source], self.stages[edge.target]
            for part in range(math.lcm(len(sources), len(targets))):
                source, target = sources[part % len(sources)], targets[part % len(targets)]
                if source == target:
                    continue
                found.add((source, target))
                if edge.differentiable:
                    found.add((target, source))
        return tuple(sorted(found))

    def rank(self, stage: int) -> int:
        """Return the number of stages before ``stage`` on the longest path to it.

        On a straight pipeline that is its index.
        """
        return self._ranks[stage]

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        ranks: list[int] = []
        for stage in range(len(self.stages)):
            ranks.append(max((1 + ranks[edge.source] for edge in self.incoming(stage)), default=0))
        return tuple(ranks)

    def stage_of(self, worker: int) -> int:
        """Return the stage that ``worker`` holds, the first of two."""
        return self.stages_of(worker)[0]

    def stages_of(self, worker: int) -> tuple[int, ...]:
        """Return the stages that ``worker`` holds, by chunk."""
        return tuple(k for k, workers in enumerate(self.stages) if worker in workers)

    @cached_property
    def stages_by_worker(self) -> dict[int, tuple[int, ...]]:
        """The stages of every worker, in the order of the first stages."""
        workers = dict.fromkeys(worker for holders in self.stages for worker in holders)
        return {worker: self.stages_of(worker) for worker in workers}

    @cached_property
    def is_folded(self) -> bool:
        """Whether workers hold two stages each."""
        return are_folded(self.stages)

    def incoming(self, stage: int) -> tuple[StageEdge, ...]:
        """Return the edges that end in ``stage``, by source."""
        return self._incoming[stage]

    def outgoing(self, stage: int) -> tuple[StageEdge, ...]:
        """Return the edges that start in ``stage``, by target."""
        return self._outgoing[stage]

    @cached_property
    def _incoming(self) -> tuple[tuple[StageEdge, ...], ...]:
        return self._by_stage((edge.target, edge) for edge in self.edges)

    @cached_property
    def _outgoing(self) -> tuple[tuple[StageEdge, ...], ...]:
        return self._by_stage((edge.source, edge) for edge in self.edges)

    def _by_stage(
        self, edges: Iterable[tuple[int, StageEdge]]
    ) -> tuple[tuple[StageEdge, ...], ...]:
        found: list[list[StageEdge]] = [[] for _ in self.stages]
        for stage, edge in edges:
            found[stage].append(edge)
        return tuple(map(tuple, found))

    def in_flight(self, per_link: int | tuple[int, ...] = 0) -> tuple[int, ...]:
        """Return for every stage how many parts a replica has in flight in steady state.

        Parts are minibatches, or the microbatches that they are divided into. A stage with m
        replicas and n workers behind it has 1 + ⌈n / m⌉: for the input stage of a chain this is
        PipeDream's NOAM (pipedream §3.2), ⌈workers / replicas of the input stage⌉. Where stages
        branch, the branch with the most workers counts. NOAM has none for messages that are on
        their way; each worker behind counts ``per_link`` times more for the link into it::

            1 + ⌈(1 + per_link) n / m⌉

        On a straight pipeline of D stages that is D − rank for NOAM, and 2 (D − rank) − 1 with one
        for each link. With a list, a worker of stage k counts ``per_link[k − 1]`` times more.

        Raises:
            InvalidInput: a list has not one number for each stage but the first.
        """
        links = of_links(per_link, len(self.stages))
        behind = [0] * len(self.stages)
        for stage in reversed(range(len(self.stages))):
            behind[stage] = max(
                (
                    (1 + links[edge.target - 1]) * len(self.stages[edge.target])
                    + behind[edge.target]
                    for edge in self.outgoing(stage)
                ),
                default=0,
            )
        return tuple(
            1 - (-parts // len(replicas))
            for parts, replicas in zip(behind, self.stages, strict=True)
        )
