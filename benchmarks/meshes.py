"""Is a stage that several accelerators of a host hold together faster, or the only one that fits?

Costs by formula, plans by the product's simulator; nothing runs live. This is the second version:
the cells where the first found 1.05 or more, with more search on both sides. A plan is the best of
four searches from other seeds, for the loss; layers that recompute may be the first ones alone;
evaluations count, not seconds. That is the same for plans with and without meshes.

- **Models**: Llama's shapes. 2·P·T FLOPs forward, twice that backward, at 45% of an A100's peak
  or a 4090's, 40% of an H100's, 35% of others'. bfloat16 weights and gradients, float32 master
  weights and Adam: 16 bytes a weight, and 2 more for PipeOptim's W_t. 34·T·h bytes kept a layer; or
  2·T·h and another forward, of as many of the first layers as is best, for the first stages have
  the most in flight. Cuts before and behind every attention and MLP. 10% of memory is not ours.
- **Minibatch**: two sequences of 4,096 tokens for every accelerator there is, and one update of it,
  whatever is used: replicas take microbatches, whole sequences, one at least for each member.
- **A mesh** of n accelerators of a host computes n times as fast and has n memories. Of a layer's
  weights each pass gathers what it does not have. ``zero-3``: before forward and backward of every
  microbatch, gradients scattered after each; ``zero-2``: gathered once a minibatch; ``zero-1``:
  gradients scattered once, too. On NVLink or PCIe at ``share`` of its peak; hidden behind the
  layer's computation (``overlap``), or not at all.
- **Without**: pipelines of single accelerators, asynchronous (PipeOptim). The first version has
  flushed ones and FSDP, which were slower there by 1.24 times or more in all of these cells.
- **With**: the same pipelines of meshes of 2, 4, 8.
- A network is a host's, shared by its accelerators. Late weights are priced by ``samples_needed``.
- **Verdict**: a mesh pays in a cell if it fits alone, or is at least 10% faster to the same loss
  than the best without, in the median of three repetitions with other seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise, product
from statistics import median
from typing import Any, NamedTuple

from pandas import DataFrame

from benchmarks.study import Needs, Row, Study
from drlpp.costs.cost_table import profile_of_table
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.baselines import even_split
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Judge, Limits, Space, Vary, search
from drlpp.schedule.analysis.staleness import mean_staleness, samples_needed
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import links_text
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link

MODELS = {"1B": (22, 2048), "3B": (26, 3200), "7B": (32, 4096), "13B": (40, 5120)}
MODELS |= {"30B": (60, 6656), "70B": (80, 8192)}
"""Layers and width h of each; 12·h² weights a layer."""
_VOCABULARY, _SEQUENCE = 32_000, 4096
_ASYNC = "1f1b"
_MOST_SIMULATED = 30
"""Of a kind of plan, in the order of lower bounds; more only until one fits."""

_SEARCHES = 4
"""From other seeds, of which the best counts: as the product plans."""

_SEARCHED = 3
"""Ways of a kind (mesh, ZeRO, microbatches, layers that recompute) that are searched."""

_MOST_MOVES = 500
"""Of a climb."""

_DEEPER = 1_000
"""Evaluations of a search where a mesh still gains 5%."""

_COMPARED = 6
"""Ways whose fastest equal stages are compared, each with as few layers that recompute as fit."""

_STEPS = 16
"""Of how many layers recompute."""


class World(NamedTuple):
    """Hosts, accelerators in each, their FLOP/s, memory, HBM's and in-host links' peaks, Gbit/s."""

    hosts: int
    each: int
    flops: float
    memory: float
    hbm: float
    inside: float
    gbit: float


class Part(NamedTuple):
    """Of a layer: weights in h², and what it keeps in tensors of the width."""

    weights: float
    kept: float


_LAYER = (Part(4, 6.5), Part(8, 10.5))
"""Attention and MLP."""


WORLDS = {
    "4x8 A100-80 10G": World(4, 8, 1.4e14, 80e9, 2.0e12, 3.0e11, 10),
    "4x8 A100-80 25G": World(4, 8, 1.4e14, 80e9, 2.0e12, 3.0e11, 25),
    "4x8 A100-80 100G": World(4, 8, 1.4e14, 80e9, 2.0e12, 3.0e11, 100),
    "4x8 H100-80 400G": World(4, 8, 4.0e14, 80e9, 3.3e12, 4.5e11, 400),
    "4x4 4090-24 1G": World(4, 4, 7.4e13, 24e9, 1.0e12, 2.86e10, 1),
    "4x4 4090-24 10G": World(4, 4, 7.4e13, 24e9, 1.0e12, 2.86e10, 10),
    "2x4 4090-24 10G": World(2, 4, 7.4e13, 24e9, 1.0e12, 2.86e10, 10),
    "2x4 V100-16 10G": World(2, 4, 4.4e13, 16e9, 0.9e12, 1.6e10, 10),
    "2x4 V100-32 10G": World(2, 4, 4.4e13, 32e9, 0.9e12, 1.6e10, 10),
    "4x4 T4-16 10G": World(4, 4, 2.3e13, 16e9, 3.2e11, 1.6e10, 10),
    "4x4 T4-16 25G": World(4, 4, 2.3e13, 16e9, 3.2e11, 1.6e10, 25),
}


class Case(Record):
    """A model in a world; ``sequences`` of a minibatch for each accelerator.

    Each search ends after so many evaluations (``judged``), and after nothing else.
    """

    model: str
    world: str
    overlap: bool = True
    share: float = 0.7
    sequences: int = 2
    repetitions: int = 3
    judged: int = 200


class Best(Record):
    """The fastest of a kind: seconds of a minibatch, and times the samples that it needs."""

    kind: str
    seconds: float
    factor: float
    what: str

    @property
    def to_loss(self) -> float:
        """Seconds of a minibatch, for each that plain training would need to the same loss."""
        return self.seconds * self.factor


class Searched(Record):
    """The fastest that searches of a kind found, and what they took.

    ``judged`` and ``played`` are evaluations by rule and simulations, of all its searches.
    """

    repetition: int
    kind: str
    best: Best | None
    judged: int
    played: int
    cpu_seconds: float


class Found(Row):
    """The fastest of each kind with equal stages that fits, and what searches made of these."""

    case: Case
    best: tuple[Best, ...]
    searched: tuple[Searched, ...]


@dataclass(frozen=True)
class Mesh:
    """Accelerators of a cluster in meshes of n, for one number of microbatches."""

    case: Case
    n: int
    zero: int
    parts: int
    recomputes: int

    @property
    def world(self) -> World:
        """Where it is."""
        return WORLDS[self.case.world]

    @property
    def sequences(self) -> int:
        """Of a minibatch."""
        return self.case.sequences * self.world.hosts * self.world.each

    def _collective(self, weights: float) -> float:
        bandwidth = self.world.inside * self.case.share
        return (self.n - 1) * (2 * weights / self.n / bandwidth + 1e-5)

    def _with(self, computing: float, every: float, once: float) -> float:
        """Return seconds of a minibatch with collectives of every microbatch, and of one."""
        m = self.parts
        if not self.case.overlap:
            return computing + m * every + once
        return max(computing / m, every + once) + (m - 1) * max(computing / m, every)

    def _row(
        self, name: str, weights: float, works: bool, again: int, tokens: float, **more: Any
    ) -> Any:
        computing = 2.0 * weights * tokens / (self.world.flops * self.n) * works
        moved = self._collective(weights) if self.n > 1 else 0.0
        every, once = (moved, 0.0) if self.zero == 3 else (0.0, moved)
        scattered = (moved, 0.0) if self.zero > 1 else (0.0, moved)
        return {
            "name": name,
            "forward_seconds": self._with(computing, every, once),
            "backward_seconds": self._with(again * computing, every + scattered[0], scattered[1]),
            "parameter_bytes": int(2 * weights),
            **more,
        }

    @cached_property
    def workload(self) -> Workload:
        """The model's costs, as on one accelerator as fast as a mesh."""
        layers, width = MODELS[self.case.model]
        tokens = self.sequences * _SEQUENCE
        sent, words = 2 * tokens * width, _VOCABULARY * width
        rows = [self._row("embedding", words, False, 2, tokens, output_bytes=sent, kept_bytes=0)]
        working = [sent]
        for number, (index, part) in product(range(layers), enumerate(_LAYER)):
            recomputes = number < self.recomputes
            kept = sent * (index == 0) if recomputes else part.kept * sent
            more = {"output_bytes": sent, "kept_bytes": round(kept)}
            weights, again = part.weights * width**2, 2 + recomputes
            rows.append(self._row(f"{index}.{number}", weights, True, again, tokens, **more))
            working.append((17 if recomputes else 2) * sent)
        # Logits in float32, and as many bytes of bfloat16.
        logits = tokens * _VOCABULARY
        rows.append(
            self._row("head", words, True, 2, tokens, output_bytes=4, kept_bytes=6 * logits)
        )
        table = profile_of_table(rows)
        working.append(4 * logits)
        costs = [
            op.model_copy(update={"working_bytes": bytes_})
            for op, bytes_ in zip(table.operators, working, strict=True)
        ]
        of_byte = {"update_seconds_per_byte": 14.0, "prediction_seconds_per_byte": 4.0}
        of_byte = {key: value / self.world.hbm / self.n for key, value in of_byte.items()}
        profile = table.model_copy(update={"operators": tuple(costs), **of_byte})
        return Workload.of(profile)

    @cached_property
    def state_copies(self) -> float:
        """As of a :class:`MemoryModel`: what members hold whole is there n times."""
        whole = {3: 0, 2: 1, 1: 2}[self.zero]
        return 6 + (self.n - 1) * whole + (self.n if whole and self.n > 1 else 0)

    @cached_property
    def cluster(self) -> Cluster:
        """A cluster whose accelerators are meshes."""
        world, weights = self.world, 12 * MODELS[self.case.model][1] ** 2
        buffers = {3: 6, 2: 2, 1: 0}[self.zero] * weights * (self.n > 1)
        each = world.each // self.n
        host = Host(
            name="host",
            count=world.hosts,
            accelerators=each,
            device="cuda",
            memory_bytes=max(1.0, self.n * (0.9 * world.memory - buffers)),
        )
        inside, between = world.inside * self.case.share * self.n, world.gbit / 8 * 1e9
        return Cluster(
            hosts=(host,),
            within_host=Link(bandwidth_bytes_per_second=inside, latency_seconds=1e-5),
            between_hosts=Link(bandwidth_bytes_per_second=between, latency_seconds=5e-5),
        )

    def problem(self, method: Method) -> PlanningProblem:
        """Return what is planned."""
        memory = MemoryModel(method, self.state_copies)
        workload = self.workload.with_method(method)
        return PlanningProblem(workload, self.cluster, memory=memory, objective="loss")

    def placements(self) -> Iterator[Placement]:
        """Yield equal stages with equally many replicas, next to each other or apart."""
        each = self.cluster.accelerators // len(self.cluster.host_names)
        counts = {each * h for h in (1, 2, len(self.cluster.host_names))}
        for count, stages in product(sorted(counts), range(1, len(self.workload) + 1)):
            m, rest = divmod(count, stages)
            if rest or count > self.cluster.accelerators or m > self.parts or self.parts % m:
                continue
            cuts = _cuts(self.case.model, self.recomputes, stages)
            for apart in {m > 1 and stages > 1, False}:
                yield Placement(
                    stages=tuple(
                        Stage(
                            operators=cut.operators,
                            accelerators=tuple(
                                r * stages + k if apart else k * m + r for r in range(m)
                            ),
                        )
                        for k, cut in enumerate(cuts)
                    )
                )


@cache
def _cuts(model: str, recomputes: int, stages: int) -> tuple[Stage, ...]:
    case = Case(model=model, world="4x8 A100-80 100G")
    mesh = Mesh(case, 1, 1, 1, recomputes)
    one_host = Cluster(
        hosts=(Host(name="host", accelerators=stages),),
        within_host=Link(bandwidth_bytes_per_second=1e9),
    )
    return even_split(PlanningProblem(mesh.workload, one_host), stages).stages


def _depths(mesh: Mesh, placement: Placement) -> set[int | tuple[int, ...]]:
    """Return depths beyond NOAM: everywhere, or only for links between hosts."""
    each = mesh.cluster.accelerators // len(mesh.cluster.host_names)
    hosts = [{a // each for a in stage.accelerators} for stage in placement.stages]
    crossing = [len(a | b) > 1 for a, b in pairwise(hosts)]
    return {0, 1, *(tuple(k * cross for cross in crossing) for k in (1, 2, 4) if any(crossing))}


def _candidates(case: Case) -> Iterator[tuple[str, Mesh, Candidate]]:
    """Yield every plan that is looked at, with its kind."""
    world = WORLDS[case.world]
    # What is not hidden matters to meshes alone.
    sizes = [n for n in (1, 2, 4, 8)[not case.overlap :] if n <= world.each]
    for n, recomputes in product(sizes, (0, MODELS[case.model][0])):
        sequences = case.sequences * world.hosts * world.each
        parts = [m for m in (1, 2, 4, 8, 16, 32, 64, 128) if m * n <= sequences]
        # Many are better than few for all pipelines, but for what meshes gather each time.
        few = len(parts) - (3 if n > 1 else 2)
        for m, zero in product(parts[few:], (1, 2, 3) if n > 1 else (1,)):
            mesh = Mesh(case, n, zero, m, recomputes)
            for placement in mesh.placements():
                if len(placement.stages) == 1:
                    continue
                for depth in _depths(mesh, placement):
                    method = Method(
                        schedule=_ASYNC,
                        policy="pipeoptim",
                        microbatches=m,
                        in_flight_per_link=depth,
                    )
                    yield _KINDS[n > 1], mesh, Candidate(placement, method)


@cache
def _problem(mesh: Mesh, method: Method) -> PlanningProblem:
    return mesh.problem(method)


def _bound(mesh: Mesh, candidate: Candidate) -> float:
    """Return seconds that a plan takes at least; infinite if it does not fit for sure."""
    problem, method = _problem(mesh, candidate.method), candidate.method
    stages = candidate.placement.stages
    memory, slowest = problem.memory, 0.0
    flight = Pipeline.straight(*[len(s.accelerators) for s in stages]).in_flight(
        method.in_flight_per_link
    )
    limit = problem.cluster.memory_bytes[0] or math.inf
    for stage, parts in zip(stages, flight, strict=True):
        work = problem.workload.stage(stage.operators, last=stage is stages[-1])
        least = work.parameter_bytes * memory.weight_copies
        if least + work.kept_bytes * parts / method.microbatches > limit:
            return math.inf
        slowest = max(slowest, float(work.seconds) / len(stage.accelerators))
    return slowest


_Known = tuple[float, Mesh, Candidate]
"""Seconds to the loss of a plan."""


def _equal_stages(case: Case) -> tuple[list[Best], dict[str, list[_Known]]]:
    """Return the fastest plan of each kind, and of each way of the asynchronous kinds."""
    bounds: dict[str, list[tuple[float, int, Mesh, Candidate]]] = {}
    for number, (kind, mesh, candidate) in enumerate(_candidates(case)):
        if (bound := _bound(mesh, candidate)) < math.inf:
            by_rule = _problem(mesh, candidate.method).predict(candidate.placement)
            bound = max(bound, by_rule.seconds_per_minibatch)
            bounds.setdefault(kind, []).append((bound, number, mesh, candidate))
    found: dict[str, Best] = {}
    fitting: dict[str, list[_Known]] = {}
    for kind, known in bounds.items():
        tried = 0
        for bound, _, mesh, candidate in sorted(known, key=lambda one: one[:2]):
            so_far = found[kind].to_loss if kind in found else math.inf
            if bound >= so_far or (tried >= _MOST_SIMULATED and kind in found):
                break
            tried += 1  # noqa: SIM113
            with suppress(InvalidInput):
                one = _simulated(kind, mesh, candidate)
                if one is not None:
                    fitting.setdefault(kind, []).append((one.to_loss, mesh, candidate))
                    found[kind] = min(found.get(kind, one), one, key=_to_loss)
    ways = {kind: _compared(kind, known) for kind, known in fitting.items()}
    return list(found.values()), ways


def _compared(kind: str, fitting: Sequence[_Known]) -> list[_Known]:
    """Return the fastest plan of some ways with as few layers that recompute as fit."""
    of_way: dict[Mesh, _Known] = {}
    for one in sorted(fitting, key=lambda one: one[0]):
        of_way.setdefault(replace(one[1], recomputes=0), one)
    found = []
    for seconds, mesh, candidate in list(of_way.values())[:_COMPARED]:
        best = seconds, mesh, candidate
        for step in range(_STEPS):
            fewer = replace(mesh, recomputes=round(step * MODELS[mesh.case.model][0] / _STEPS))
            cut = _cut_anew(fewer, candidate)
            if fewer.recomputes >= mesh.recomputes:
                break
            if _problem(fewer, cut.method).predict(cut.placement).missing_bytes <= 0:
                played = _simulated(kind, fewer, cut)
                if played is not None and played.to_loss < seconds:
                    best = played.to_loss, fewer, cut
                break
        found.append(best)
    return sorted(found, key=lambda one: one[0])


def _cut_anew(mesh: Mesh, candidate: Candidate) -> Candidate:
    """Return a plan with equal stages for other layers that recompute."""
    stages = candidate.placement.stages
    cuts = _cuts(mesh.case.model, mesh.recomputes, len(stages))
    placement = Placement(
        stages=tuple(
            Stage(operators=cut.operators, accelerators=stage.accelerators)
            for cut, stage in zip(cuts, stages, strict=True)
        )
    )
    return Candidate(placement, candidate.method)


def found_for(case: Case) -> Found:
    """Return the fastest plan of each kind, in time to the loss, and those of searches."""
    best, ways = _equal_stages(case)
    searched = [
        _searched(kind, repetition, known)
        for repetition, (kind, known) in product(range(case.repetitions), ways.items())
        if known
    ]
    return Found(case=case, best=tuple(best), searched=tuple(searched))


def _to_loss(best: Best) -> float:
    return best.to_loss


def _simulated(kind: str, mesh: Mesh, candidate: Candidate) -> Best | None:
    problem = _problem(mesh, candidate.method)
    played = simulate(
        problem.workload,
        problem.cluster,
        candidate.placement,
        candidate.method,
        memory=problem.memory,
    )
    limits = problem.cluster.memory_bytes
    for needed, a in zip(played.memory_bytes, played.accelerators, strict=True):
        if needed > (limits[a] or math.inf):
            return None
    method = candidate.method
    staleness = mean_staleness(played.pipeline, method)
    what = (
        f"{candidate.placement.configuration} x{mesh.n} {method.schedule} M={method.microbatches}"
    )
    what += f" zero-{mesh.zero}" * (mesh.n > 1) + f" recomputing {mesh.recomputes}" * (
        mesh.recomputes > 0
    )
    what += f" +{links_text(method.in_flight_per_link)}" * bool(method.in_flight_per_link)
    return Best(
        kind=kind,
        seconds=played.seconds_per_minibatch,
        factor=samples_needed(staleness),
        what=what,
    )


def _searched(kind: str, repetition: int, known: Sequence[_Known]) -> Searched:
    """Return what the product's searches make of the fastest plans with equal stages.

    The fastest way is searched with three numbers of layers that recompute; or, if fewer differ,
    the next ones are searched, too.
    """
    begin, counted = time.process_time(), [0, 0]
    done: dict[Mesh, tuple[float, Best | None, Candidate]] = {}

    def run(mesh: Mesh, given: list[Candidate]) -> float:
        """Search from plans with four seeds, of which the best counts."""
        first = _SEARCHES * repetition + 1
        found = [_search(kind, mesh, given, first + more, counted) for more in range(_SEARCHES)]
        done[mesh] = min(
            (one for one in found if one is not None),
            key=lambda one: one[0],
            default=(math.inf, None, given[0]),
        )
        return done[mesh][0]

    _, best, candidate = known[0]
    least = run(best, [candidate])
    for steps in (-2, 1 if best.recomputes == 0 else -1):
        other = best.recomputes + round(steps * MODELS[best.case.model][0] / _STEPS)
        mesh = replace(best, recomputes=max(other, 0))
        if mesh not in done:
            given = [_cut_anew(mesh, candidate), done[best][2]]
            if (seconds := run(mesh, given)) < least:
                least, best = seconds, mesh
    for _, mesh, candidate in known[1:]:
        if len(done) < _SEARCHED:
            run(mesh, [candidate])
    return Searched(
        repetition=repetition,
        kind=kind,
        best=min(done.values(), key=lambda one: one[0])[1],
        judged=counted[0],
        played=counted[1],
        cpu_seconds=time.process_time() - begin,
    )


def _search(
    kind: str, mesh: Mesh, starts: Sequence[Candidate], seed: int, counted: list[int]
) -> tuple[float, Best, Candidate] | None:
    """Return what the product's search makes of plans: other depths and uneven stages, too."""
    method = starts[0].method
    problem = _problem(mesh, method)
    usual = method.model_copy(update={"in_flight_per_link": 0})
    judge = Judge(problem, Space(usual, frozenset({Vary.DEPTH})))
    try:
        judged = mesh.case.judged
        moves = min(judged // 2, _MOST_MOVES)
        limits = Limits(judged=judged, steps=100_000_000, patience=64, moves=moves)
        plan = search(judge, starts, limits, seed)[0]
    except NothingFits:
        plan = None
    counted[0] += judge.judged
    counted[1] += judge.played
    # A single stage is no pipeline.
    if plan is None or len(plan.placement.stages) == 1:
        return None
    best = _simulated(kind, mesh, plan.candidate)
    return (best.to_loss, best, plan.candidate) if best is not None else None


class Meshes(Study[Case, Found]):
    """The best plans with and without meshes."""

    name = "meshes"
    question = "Does a stage that several accelerators hold together pay, and where?"
    row = Found
    needs = Needs(hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return where the first version found 1.05 or more, and the same without overlap."""
        if short:
            return [Case(model="1B", world="2x4 V100-16 10G", repetitions=1)]
        return [
            Case(
                model=model,
                world=world,
                overlap=overlap,
                repetitions=seeds or 3,
            )
            for overlap, (model, world) in product((True, False), _NEAR)
        ]

    def wanted(self, cases: Sequence[Case], rows: Sequence[Found]) -> list[Case]:
        """Return the cases, and first of all those that need deeper searches."""
        done = {row.case for row in rows}
        deeper = [
            row.case.model_copy(update={"judged": _DEEPER, "repetitions": 1})
            for row in rows
            if row.case in cases and row.case.overlap and median(_gains(row)) >= 1.05
        ]
        return [case for case in [*deeper, *cases] if case not in done]

    def run(self, case: Case) -> Found:
        """Plan for one model in one world."""
        return found_for(case)

    def table(self, rows: Sequence[Found]) -> Mapping[str, DataFrame]:
        """Return seconds times samples of every kind, and how much better the best mesh is."""
        return {
            "Seconds of a minibatch, times the samples to the same loss": DataFrame(
                _cells(row, [one for one in rows if _with_overlap(one.case) == row.case])
                for row in rows
                if row.case.overlap
            )
        }


_NEAR = (
    ("3B", "4x4 4090-24 1G"),
    ("7B", "4x4 4090-24 1G"),
    ("13B", "4x4 4090-24 10G"),
    ("3B", "2x4 V100-16 10G"),
    ("7B", "4x4 T4-16 10G"),
    ("70B", "4x8 A100-80 10G"),
    ("70B", "4x8 A100-80 25G"),
)
_KINDS = ("pipeline", "mesh")


def _gain(best: Sequence[Best]) -> float:
    """Return how much faster than the best without meshes the best with them is."""
    with_, without = (
        min((one.to_loss for one in best if one.kind in kinds), default=math.inf)
        for kinds in (_KINDS[1:], _KINDS[:1])
    )
    return without / with_ if with_ < math.inf else 0.0


def _with_overlap(case: Case) -> Case:
    return case.model_copy(update={"overlap": True})


def _gains(row: Found, without: Found | None = None) -> list[float]:
    """Return how much better the best mesh is, in every repetition.

    ``without`` has the plans without meshes, which are the same where nothing overlaps.
    """
    without = without or row

    def all_of(found: Found, repetition: int) -> list[Best]:
        searched = [one.best for one in found.searched if one.repetition == repetition]
        return [*found.best, *(one for one in searched if one is not None)]

    return [
        _gain(
            [
                *(one for one in all_of(without, repetition) if one.kind == _KINDS[0]),
                *(one for one in all_of(row, repetition) if one.kind == _KINDS[1]),
            ]
        )
        for repetition in range(row.case.repetitions)
    ]


def _cells(row: Found, others: Sequence[Found]) -> dict[str, str]:
    case = row.case
    cells = {"case": f"{case.model} {case.world}", "evaluations": str(case.judged)}
    for kind in _KINDS:
        found = [
            min((b for b in row.best if b.kind == kind), key=_to_loss, default=None),
            *(one.best for one in row.searched if one.kind == kind),
        ]
        texts = [f"{one.to_loss:.4g} ({one.what})" for one in found if one is not None]
        cells[kind] = "; ".join(texts) or "–"
    for one in (row, *(other for other in others if not other.case.overlap)):
        gains = _gains(one, row)
        title = "without / with" + ", not overlapped" * (not one.case.overlap)
        cells[title] = f"{median(gains):.2f} ({', '.join(f'{gain:.3f}' for gain in gains)})"
    return cells


STUDY = Meshes()
