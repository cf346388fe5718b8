"""Is a stage that several accelerators of a host hold together faster, or the only one that fits?

Costs by formula, plans by the product's simulator; nothing runs live. Fixed before the run, but for
what first cells showed to be unfair to pipelines without meshes (coarse cuts; more in flight only
for links between hosts) or with them (the order in which plans are simulated).

- **Models**: Llama's shapes. 2·P·T FLOPs forward, twice that backward, at 45% of an A100's peak
  or a 4090's, 40% of an H100's, 35% of others'. bfloat16 weights and gradients, float32 master
  weights and Adam: 16 bytes a weight, and 2 more for PipeOptim's W_t. 34·T·h bytes kept a layer; or
  2·T·h and another forward. Cuts as in ``_LAYER``. 10% of memory is not ours.
- **Minibatch**: two sequences of 4,096 tokens for every accelerator there is, and one update of it,
  whatever is used: replicas take microbatches, whole sequences, one at least for each member.
- **A mesh** of n accelerators of a host computes n times as fast and has n memories. Of a layer's
  weights each pass gathers what it does not have. ``zero-3``: before forward and backward of every
  microbatch, gradients scattered after each; ``zero-2``: gathered once a minibatch; ``zero-1``:
  gradients scattered once, too. On NVLink or PCIe at ``share`` of its peak; hidden behind the
  layer's computation (``overlap``), or not at all.
- **Without**: pipelines of single accelerators, asynchronous (PipeOptim) or flushed (1F1B, ZB-H1);
  every way of ``ways_of_training`` with the same updates; FSDP and ZeRO-2 over all, or within hosts
  with all-reduces between them, which torchtitan's users have.
- **With**: the same pipelines of meshes of 2, 4, 8: ``mesh async`` is our runtime's, ``mesh sync``
  could be an export to torchtitan.
- A network is a host's, shared by its accelerators. Late weights are priced by ``samples_needed``.
- **Verdict**: a mesh pays in a cell if it fits alone, or is at least 10% faster to the same loss
  than the best without. An export suffices where ``mesh sync`` is within 10% of ``mesh async``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple

from pandas import DataFrame

from benchmarks.study import Needs, Row, Study
from drlpp.costs.cost_table import profile_of_table
from drlpp.costs.memory import MemoryModel
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
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
_ASYNC, _FLUSHED = "1f1b", ("1f1b-flush", "zb-h1")
_MOST_SIMULATED = 30
"""Of a kind of plan, in the order of lower bounds; more only until one fits."""


_LIMITS = Limits(judged=1_000, steps=300_000, patience=1)
"""Of the product's search from the fastest plan of each kind."""


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
    """Of a layer: weights in h², and what it keeps and gives, in tensors of the width."""

    weights: float
    kept: float
    given: float


_LAYER = {
    2: (Part(4, 6.5, 1), Part(8, 10.5, 1)),
    4: (Part(3, 4, 4), Part(1, 2.5, 1), Part(16 / 3, 6.5, 11 / 3), Part(8 / 3, 4, 1)),
}
"""Attention and MLP; or projections, output, MLP's halves, behind which more tensors are cut."""


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
    """A model in a world; ``sequences`` of a minibatch for each accelerator; cuts in a layer."""

    model: str
    world: str
    overlap: bool = True
    share: float = 0.7
    sequences: int = 2
    cuts: int = 2


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


class Found(Row):
    """The fastest of each kind that fits."""

    case: Case
    best: tuple[Best, ...]


@dataclass(frozen=True)
class Mesh:
    """Accelerators of a cluster in meshes of n, for one number of microbatches."""

    case: Case
    n: int
    zero: int
    parts: int
    recomputes: bool
    asynchronous: bool
    flat: bool = False

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
        if self.flat and self.world.hosts > 1:
            bandwidth = min(bandwidth, self.world.gbit / 8 * 1e9)
        return (self.n - 1) * (2 * weights / self.n / bandwidth + 1e-5)

    def _with(self, computing: float, every: float, once: float) -> float:
        """Return seconds of a minibatch with collectives of every microbatch, and of one."""
        m = self.parts
        if not self.case.overlap:
            return computing + m * every + once
        return max(computing / m, every + once) + (m - 1) * max(computing / m, every)

    def _row(self, name: str, weights: float, works: bool, tokens: float, **more: Any) -> Any:
        computing = 2.0 * weights * tokens / (self.world.flops * self.n) * works
        moved = self._collective(weights) if self.n > 1 else 0.0
        every, once = (moved, 0.0) if self.zero == 3 else (0.0, moved)
        scattered = (moved, 0.0) if self.zero > 1 else (0.0, moved)
        again = 3 if self.recomputes and name != "head" else 2
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
        parts = _LAYER[self.case.cuts]
        rows = [self._row("embedding", words, False, tokens, output_bytes=sent, kept_bytes=0)]
        for number, (index, part) in product(range(layers), enumerate(parts)):
            kept = sent * (index == 0) if self.recomputes else part.kept * sent
            more = {"output_bytes": round(part.given * sent), "kept_bytes": round(kept)}
            weights = part.weights * width**2
            rows.append(self._row(f"{index}.{number}", weights, True, tokens, **more))
        # Logits in float32, and as many bytes of bfloat16.
        logits = tokens * _VOCABULARY
        rows.append(self._row("head", words, True, tokens, output_bytes=4, kept_bytes=6 * logits))
        table = profile_of_table(rows)
        within = 17 * sent if self.recomputes else 2 * sent
        working = [sent, *[within] * len(parts) * layers, 4 * logits]
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
        again = whole > 0 and self.asynchronous
        return 6 + (self.n - 1) * whole + (self.n if again and self.n > 1 else 0)

    @cached_property
    def cluster(self) -> Cluster:
        """A cluster whose accelerators are meshes."""
        world, weights = self.world, 12 * MODELS[self.case.model][1] ** 2
        buffers = {3: 6, 2: 2, 1: 0}[self.zero] * weights * (self.n > 1)
        each = 1 if self.flat else world.each // self.n
        host = Host(
            name="host",
            count=1 if self.flat else world.hosts,
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
        return PlanningProblem(self.workload.with_method(method), self.cluster, memory=memory)

    def placements(self) -> Iterator[Placement]:
        """Yield equal stages with equally many replicas, next to each other or apart."""
        each = self.cluster.accelerators // len(self.cluster.host_names)
        counts = {each * h for h in (1, 2, len(self.cluster.host_names))}
        for count, stages in product(sorted(counts), range(1, len(self.workload) + 1)):
            m, rest = divmod(count, stages)
            if rest or count > self.cluster.accelerators or m > self.parts or self.parts % m:
                continue
            cuts = _cuts(self.case.model, self.recomputes, stages, self.case.cuts)
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
def _cuts(model: str, recomputes: bool, stages: int, of_layer: int) -> tuple[Stage, ...]:
    case = Case(model=model, world="4x8 A100-80 100G", cuts=of_layer)
    mesh = Mesh(case, 1, 1, 1, recomputes, False)
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
    whole = world.hosts * world.each
    sizes = [(n, False) for n in (1, 2, 4, 8) if n <= world.each]
    for (n, flat), recomputes in product([*sizes, (whole, True)], (False, True)):
        sequences = case.sequences * whole
        parts = [m for m in (1, 2, 4, 8, 16, 32, 64, 128) if m * n <= sequences]
        for m, zero, kind in product(parts, (1, 2, 3) if n > 1 else (1,), (_ASYNC, *_FLUSHED)):
            # Many are better than few for all pipelines, but for what meshes gather each time.
            few = m not in parts[-3 if n > 1 else -2 :]
            mesh = Mesh(case, n, zero, m, recomputes, kind == _ASYNC, flat)
            for placement in mesh.placements():
                single = len(placement.stages) == 1
                if kind != _FLUSHED[0] if single else few or flat:
                    continue
                name = "sharded" if single else "pipeline" if n == 1 else "mesh"
                name += "" if single else " async" if kind == _ASYNC else " sync"
                for depth in _depths(mesh, placement) if kind == _ASYNC else (0,):
                    policy = "pipeoptim" if kind == _ASYNC else "sync"
                    method = Method(
                        schedule=kind, policy=policy, microbatches=m, in_flight_per_link=depth
                    )
                    yield name, mesh, Candidate(placement, method)


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
        held = min(parts, -(-method.microbatches // len(stage.accelerators)))
        if method.schedule == _ASYNC:
            held = parts
        least = work.parameter_bytes * memory.weight_copies
        if least + work.kept_bytes * held / method.microbatches > limit:
            return math.inf
        slowest = max(slowest, float(work.seconds) / len(stage.accelerators))
    if method.flushes:
        bubble = 1.0 if method.schedule == _FLUSHED[0] else 0.3
        replicas = len(stages[0].accelerators)
        slowest *= 1 + bubble * (len(stages) - 1) * replicas / method.microbatches
    return slowest


def best_of(case: Case) -> list[Best]:
    """Return the fastest plan of each kind, in time to the loss."""
    bounds: dict[str, list[tuple[float, int, Mesh, Candidate]]] = {}
    for number, (kind, mesh, candidate) in enumerate(_candidates(case)):
        if (bound := _bound(mesh, candidate)) < math.inf:
            by_rule = _problem(mesh, candidate.method).predict(candidate.placement)
            bound = max(bound, by_rule.seconds_per_minibatch)
            bounds.setdefault(kind, []).append((bound, number, mesh, candidate))
    found: dict[str, Best] = {}
    chosen: dict[str, tuple[Mesh, Candidate]] = {}
    for kind, known in bounds.items():
        tried = 0
        for bound, _, mesh, candidate in sorted(known, key=lambda one: one[:2]):
            so_far = found[kind].to_loss if kind in found else math.inf
            if bound >= so_far or (tried >= _MOST_SIMULATED and kind in found):
                break
            tried += 1  # noqa: SIM113
            with suppress(InvalidInput):
                one = _simulated(kind, mesh, candidate)
                if one is not None and one.to_loss < so_far:
                    found[kind], chosen[kind] = one, (mesh, candidate)
    for kind, (mesh, candidate) in sorted(chosen.items(), reverse=True):
        # Where it may decide.
        if kind.endswith(" async") and _gain(list(found.values())) > 1:
            searched = _searched(kind, mesh, candidate)
            found[kind] = min(found[kind], searched or found[kind], key=_to_loss)
    for way in _ways(case):
        found["sharded"] = min(found.get("sharded", way), way, key=_to_loss)
    return list(found.values())


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
    what += f" zero-{mesh.zero}" * (mesh.n > 1) + " recomputing" * mesh.recomputes
    what += (
        f" +{links_text(method.in_flight_per_link)}" * bool(method.in_flight_per_link)
        + " flat" * mesh.flat
    )
    return Best(
        kind=kind,
        seconds=played.seconds_per_minibatch,
        factor=1.0 if method.flushes else samples_needed(staleness),
        what=what,
    )


def _searched(kind: str, mesh: Mesh, candidate: Candidate) -> Best | None:
    """Return what the product's search makes of a plan, other depths and uneven stages included."""
    problem = _problem(mesh, candidate.method)
    vary = frozenset({Vary.DEPTH} if candidate.method.schedule == _ASYNC else ())
    usual = candidate.method.model_copy(update={"in_flight_per_link": 0})
    judge = Judge(problem, Space(usual, vary))
    plan = search(judge, [candidate], _LIMITS)[0]
    # A single stage is no pipeline.
    several = len(plan.placement.stages) > 1
    return _simulated(kind, mesh, plan.candidate) if several else None


def _ways(case: Case) -> Iterator[Best]:
    for recomputes in (False, True):
        mesh = Mesh(case, 1, 1, 1, recomputes, asynchronous=False)
        method = Method(schedule="1f1b-flush", policy="sync")
        problem = mesh.problem(method)
        ways = WaysOfTraining(problem.workload, problem.cluster, problem.memory, mesh.sequences)
        for way in ways.best():
            if way.fits and way.way.same_updates and way.way.compression == 1:
                what = f"{way.name} on {len(way.accelerators)}, {way.passes} passes"
                what += " recomputing" * recomputes
                yield Best(kind="sharded", seconds=way.seconds_per_minibatch, factor=1.0, what=what)


class Meshes(Study[Case, Found]):
    """The best plans with and without meshes."""

    name = "meshes"
    question = "Does a stage that several accelerators hold together pay, and where?"
    row = Found
    needs = Needs(hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return all models in all worlds."""
        if short:
            return [Case(model="1B", world="2x4 V100-16 10G")]
        return [Case(model=model, world=world) for world, model in product(WORLDS, MODELS)]

    def wanted(self, cases: Sequence[Case], rows: Sequence[Found]) -> list[Case]:
        """Return the cases, and where a mesh gains, those with finer cuts and other assumptions."""
        done = {row.case for row in rows}
        near = [
            row.case
            for row in rows
            if row.case == Case(model=row.case.model, world=row.case.world)
            and _gain(row.best) > 1.05
        ]
        varied = [
            case.model_copy(update={"cuts": 4, **other}) for other, case in product(_OTHERS, near)
        ]
        return [case for case in [*cases, *varied] if case not in done]

    def run(self, case: Case) -> Found:
        """Plan for one model in one world."""
        return Found(case=case, best=tuple(best_of(case)))

    def table(self, rows: Sequence[Found]) -> Mapping[str, DataFrame]:
        """Return seconds times samples of every kind."""
        return {
            "Seconds of a minibatch, times the samples to the same loss": DataFrame(
                {
                    **{key: str(value) for key, value in row.case.model_dump().items()},
                    **_cells(row.best),
                }
                for row in rows
            )
        }


_OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"overlap": False},
    {"sequences": 8},
    {"share": 0.3},
    {"share": 0.6},
    {"share": 0.8},
)
_KINDS = ("sharded", "pipeline sync", "pipeline async", "mesh sync", "mesh async")


def _gain(best: Sequence[Best]) -> float:
    """Return how much faster than the best without meshes the best with them is."""
    of = {one.kind: one.to_loss for one in best}
    with_, without = (
        min(of.get(kind, math.inf) for kind in kinds) for kinds in (_KINDS[3:], _KINDS[:3])
    )
    return without / with_ if with_ < math.inf else 0.0


def _cells(best: Sequence[Best]) -> dict[str, str]:
    of = {one.kind: one for one in best}
    cells = {
        kind: f"{of[kind].to_loss:.3g} ({of[kind].what})" if kind in of else "–" for kind in _KINDS
    }
    return {**cells, "with / without": f"{_gain(best):.2f}"}


STUDY = Meshes()
