"""How good is the pre-trained policy on models and clusters that it never saw, unmeasured?

    python -m benchmarks.zero_shot --profiles benchmarks/profiles \\
        --document benchmarks/zero_shot/README.md

A placement's gap is how much longer it takes than the optimum that the exact planner proves, by
the planners' rule, and played by the simulator (where the optimum of the rule may be beaten). The
policy places greedily, or the best of several samples by the rule is taken. Held out from
pre-training are the families ``blocks`` and ``encoder-decoder``, all models of more than 60
operators, clusters of more than 8 accelerators, and the zoo.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import numpy
import torch
import typer
from pandas import DataFrame
from rich.progress import track

from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.agents.pretraining.problems import SolvedProblem, draw_problem, placement_of
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import PRETRAINED, load_weights
from drlpp.cli.command_line import build_console, run_program
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, tractability
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

BEGIN, END = "<!-- zero-shot begin -->", "<!-- zero-shot end -->"
SAMPLES = (1, 16, 64)
MOST_DOWNSETS = 2000
"""Of made-up models; those with more are drawn again, since proving their optima takes minutes."""

_MADE_UP = (
    # title, families, operators, accelerators
    ("as trained", ("chain", "residual", "towers", "layered"), (8, 60), (2, 8)),
    ("family blocks", ("blocks",), (8, 60), (2, 8)),
    ("family encoder-decoder", ("encoder-decoder",), (8, 60), (2, 8)),
    ("61 to 200 operators", ("chain", "residual", "encoder-decoder"), (61, 200), (2, 8)),
    ("9 to 16 accelerators", ("chain", "residual", "blocks"), (20, 60), (9, 16)),
)
_ZOO_ACCELERATORS = (4, 8)
_ZOO_BANDWIDTHS = (2.5e8, 1.25e9, 1e10)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Row:
    """The gaps of one problem, in percent.

    Attributes:
        group: of problems.
        model: what is placed.
        accelerators: on how many.
        stages: of the optimum.
        idle: how many accelerators the optimum leaves idle, which the policy cannot.
        greedy: of the likeliest placement, by the rule.
        samples: of the best of each number of samples, by the rule.
        simulated: of the best of the most samples, as the simulator plays it.
    """

    group: str
    model: str
    accelerators: int
    stages: int
    idle: int
    greedy: float
    samples: dict[int, float]
    simulated: float


@app.command()
def main(
    profiles: Annotated[Path | None, typer.Option(help="Folder of the zoo's profiles.")] = None,
    weights: Annotated[Path, typer.Option(help="Of the policy.")] = PRETRAINED,
    problems: Annotated[int, typer.Option(min=1, help="Of every made-up group.")] = 40,
    seed: Annotated[int, typer.Option(help="Of problems and samples.")] = 0,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place held-out models without any measurement."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = TransferNetwork()
    load_weights(network, weights)
    found = [*made_up_problems(problems, seed), *(zoo_problems(profiles) if profiles else ())]
    console = build_console()
    rows = [
        gaps(network, group, problem)
        for group, problem in track(found, "placing", transient=True, console=console)
    ]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        console.print(terminal(table_of(rows), "Gap to the optimum, %", names=2))
    if document is not None:
        title = "Gap to the proven optimum in %; *simulated*: the best of the most samples, played."
        write_between(document, BEGIN, END, f"{title}\n\n{markdown(table_of(rows))}\n")


def made_up_problems(count: int, seed: int) -> Iterator[tuple[str, PlanningProblem]]:
    """Yield ``count`` problems of every group, whose optima can be proven."""
    for title, families, operators, accelerators in _MADE_UP:
        draw, found = Random(f"{title} {seed}"), 0
        while found < count:
            problem = draw_problem(
                draw.choice(families), draw.randint(*operators), draw.randint(*accelerators), draw
            )
            downsets = tractability(problem.workload).downsets
            if downsets is not None and downsets <= MOST_DOWNSETS:
                found += 1
                yield title, problem


def zoo_problems(folder: Path) -> Iterator[tuple[str, PlanningProblem]]:
    """Yield every profile in a folder on clusters of equal and of unequal accelerators.

    Raises:
        InvalidInput: if there is none.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise InvalidInput(f"{folder}: expected a folder with profiles, *.json")
    for path in paths:
        workload = Workload.of(read_profile(path))
        if not tractability(workload).tractable:
            continue
        for accelerators in _ZOO_ACCELERATORS:
            for bandwidth in _ZOO_BANDWIDTHS:
                half = accelerators // 2
                for speeds in (None, [1.0] * half + [0.5] * (accelerators - half)):
                    link = Link(bandwidth_bytes_per_second=bandwidth)
                    cluster = local_cluster(accelerators, link, speeds)
                    yield "zoo", PlanningProblem(workload, cluster)


def gaps(network: TransferNetwork, group: str, problem: PlanningProblem) -> Row:
    """Place one problem."""
    solved = SolvedProblem.solve(group, problem)
    batch = ContextBatch.of([solved.context])
    greedy = network.sample(batch, [0], deterministic=True)[0]
    sampled = network.sample(batch, [0] * max(SAMPLES))
    by_rule = [100 * solved.gap(trajectory) for trajectory in sampled]
    best = sampled[int(numpy.argmin(by_rule))]
    optimal = _simulated(problem, solved.optimum)
    return Row(
        group=group,
        model=problem.workload.model.partition("(")[0],
        accelerators=problem.cluster.accelerators,
        stages=len(solved.optimum.stages),
        idle=problem.cluster.accelerators - len(solved.optimum.accelerators),
        greedy=100 * solved.gap(greedy),
        samples={count: min(by_rule[:count]) for count in SAMPLES},
        simulated=100 * (_simulated(problem, placement_of(best)) / optimal - 1),
    )


def _simulated(problem: PlanningProblem, placement: Placement) -> float:
    return simulate(problem.workload, problem.cluster, placement).seconds_per_minibatch


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return the median, 90% and worst gap of every group in percent, as text."""
    groups = {row.group: [r for r in rows if r.group == row.group] for row in rows}
    lines: list[dict[str, str]] = []
    for title, members in groups.items():
        several = [row for row in members if row.stages > 1]
        lines += _group_lines(f"{title} ({len(members)})", members)
        if 0 < len(several) < len(members):
            lines += _group_lines(f"… of several stages ({len(several)})", several)
    return DataFrame(lines)


def _group_lines(title: str, rows: Iterable[Row]) -> Iterator[dict[str, str]]:
    gaps = DataFrame(
        {
            "greedy": row.greedy,
            **{f"best of {count}": gap for count, gap in row.samples.items()},
            "simulated": row.simulated,
        }
        for row in rows
    )
    for name, quantile in (("median", 0.5), ("90%", 0.9), ("worst", 1.0)):
        values = gaps.quantile(quantile).map("{:.1f}".format)
        yield {"problems": title if name == "median" else "", "": name, **values}


if __name__ == "__main__":
    run_program(app, "benchmarks.zero_shot")
