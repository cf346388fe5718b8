"""How long does a training stand still when a host is lost for good, and is anything lost?

    python -m benchmarks.host_loss --trials 20 --out host_loss.jsonl
    python -m benchmarks.host_loss --trials 20 --out host_loss.jsonl --ray       # needs root

Two hosts of two workers each train a decoder of 60 million parameters. At a random moment behind a
checkpoint one host is lost: its workers end without a word, and it answers nothing. Training
continues on the other. At its next checkpoint the host is there again, and training grows back.
Then the same training is made by hand, without a loss, with the same placements up to the same
minibatches.

With ``--ray`` the hosts are those of a Ray cluster, emulated with 1 Gbit/s between them. In turns
the network of one is cut, or Ray's raylet is killed there, which has to be noticed. When the host
is there again, the network is joined, or Ray is started.

The exit code is 1 if weights differ by more than 1e-6, or a lost host costs more than
10 s.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.cells import read_results_of
from benchmarks.emulated_cluster import EmulatedCluster, ended_by_signals
from benchmarks.host_loss.emulated_hosts import CUT, KILLED, EmulatedHosts
from benchmarks.host_loss.losable_hosts import LosableHosts
from benchmarks.host_loss.trials import HOSTS, Task, Trial, TrialHosts, run_trial
from benchmarks.machine import this_machine
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.json_lines import append
from drlpp.schedule.method import Method

_MOST_SECONDS = 10.0
_MOST_DIFFERENCE = 1e-6
METHODS = {
    "pipeoptim": Method(policy="pipeoptim"),
    "sync": Method(schedule="1f1b-flush", policy="sync", microbatches=1),
}

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def host_loss(
    out: Annotated[Path, typer.Option(help="A file of results, which is continued.")] = Path(
        "host_loss.jsonl"
    ),
    trials: Annotated[int, typer.Option(help="Of every method.")] = 20,
    width: Annotated[int, typer.Option(help="Of the decoder.")] = 512,
    blocks: Annotated[int, typer.Option(help="Of the decoder.")] = 19,
    batch_size: Annotated[int, typer.Option(help="Sequences of 32 characters.")] = 2,
    minibatches: Annotated[int, typer.Option(help="Of each of two epochs.")] = 60,
    checkpoint_every: Annotated[int, typer.Option(help="Minibatches between checkpoints.")] = 10,
    ray: Annotated[
        bool, typer.Option("--ray", help="Lose emulated hosts with Ray, for real; needs root.")
    ] = False,
) -> None:
    """Lose a host in the middle of a training, again and again."""
    console = build_console()
    console.print(str(this_machine()))
    ways = (CUT, KILLED) if ray else (LosableHosts.lost_by,)
    for policy, method in METHODS.items():
        known = read_results_of(__name__, Trial, out)
        done = [one for one in known if one.policy == policy and one.lost_by in ways]
        task = Task.of(width, blocks, batch_size, minibatches, checkpoint_every, method)
        for seed in range(len(done), trials):
            with (
                tempfile.TemporaryDirectory(prefix="host-loss-") as folder,
                hosts_lost_by(ways[seed % len(ways)]) as hosts,
            ):
                trial = run_trial(task, Path(folder), seed, hosts)
            append(out, trial)
            console.print(
                f"{policy} {seed + 1}, {trial.lost_by}: {trial.again_seconds:.1f} s",
                soft_wrap=True,
            )
    found = read_results_of(__name__, Trial, out)
    console.print(terminal(table_of(found), names=2))
    if findings := findings_of(found):
        console.print("\n".join(findings))
        raise typer.Exit(1)


@contextmanager
def hosts_lost_by(way: str) -> Iterator[TrialHosts]:
    """Lend hosts whose last is lost in that way."""
    if way == LosableHosts.lost_by:
        yield LosableHosts([HOSTS.host_of.count(host) for host in sorted(set(HOSTS.host_of))])
        return
    with ended_by_signals(), EmulatedCluster(HOSTS, quotas=False) as emulated:
        yield EmulatedHosts(emulated, way)


def table_of(trials: Sequence[Trial]) -> DataFrame:
    """Return a row for each method and each way to lose a host."""
    rows = []
    for policy, way in dict.fromkeys((trial.policy, trial.lost_by) for trial in trials):
        own = [trial for trial in trials if (trial.policy, trial.lost_by) == (policy, way)]
        rows.append(
            {
                "policy": policy,
                "lost by": way,
                "trials": str(len(own)),
                "parameters": f"{own[0].parameters:,}",
                "noticed and planned": _median_and_most([trial.planned_seconds for trial in own]),
                "trains again": _median_and_most([trial.again_seconds for trial in own]),
                "grown back": _median_and_most([trial.grown_seconds for trial in own]),
                "weights differ by": f"{max(trial.largest_difference for trial in own):.1e}",
            }
        )
    return DataFrame(rows)


def findings_of(trials: Sequence[Trial]) -> list[str]:
    """Return what is not as it should be, in words."""
    return [
        f"{trial.policy}, {trial.lost_by}: {what}"
        for trial in trials
        for what, wrong in (
            (
                f"trained again after {trial.again_seconds:.1f} s",
                trial.again_seconds > _MOST_SECONDS,
            ),
            (
                f"weights differ by {trial.largest_difference:.1e}",
                not trial.largest_difference <= _MOST_DIFFERENCE,
            ),
        )
        if wrong
    ]


def _median_and_most(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"


if __name__ == "__main__":
    run_program(app, "host_loss")
