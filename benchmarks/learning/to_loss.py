"""How many samples does each method need to the loss of plain training, at its own best rate?

One process replays what the weights of every stage would be, so deep pipelines need no machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pandas import DataFrame

from benchmarks.learning.averaged import Averaging
from benchmarks.learning.study import Case, Late, Learned, LearningStudy, spread
from benchmarks.learning.tasks import TASKS
from benchmarks.study import Needs
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY

PLAIN = "plain AdamW"
"""Training without a pipeline, whose loss is the one to reach."""
WHOLE, DIVIDED = "PipeOptim", "PipeOptim, M = D"
"""Over whole minibatches, as in the paper; and over as many microbatches as stages."""
DEPTHS = (2, 4, 8, 16)

_CLIP = 1.0
_SMALLEST_MINIBATCH = 16
"""Samples, of all tasks."""
_PLAIN = {PLAIN: "adamw", "plain NAdam": "nadam", "plain Muon": "muon"}
"""The optimizer of each method that is never late."""
_WHOLE = {
    "vanilla": ("vanilla", "adamw"),
    "PipeDream": ("stash", "adamw"),
    "SpecTrain": ("spectrain", "adamw"),
    "XPipe": ("xpipe", "adamw"),
    "PipeMare": ("pipemare", "adamw"),
    WHOLE: ("pipeoptim", "adamw"),
    "last step": ("last-step", "adamw"),
    "NAG": ("stash", "nadam"),
    "Muon, PipeDream": ("stash", "muon"),
    "Muon, last step": ("last-step", "muon"),
}
"""Weight policy and optimizer of each method on whole minibatches."""
_DIVIDED = {
    "2BW": ("2bw", "adamw", 1),
    "Muon, 2BW": ("2bw", "muon", 1),
    "PACI": ("vanilla", "adamw", 1),
    DIVIDED: ("pipeoptim", "adamw", 1),
    "PipeOptim, M = 2D": ("pipeoptim", "adamw", 2),
    "last step, M = D": ("last-step", "adamw", 1),
    "NAG, M = D": ("stash", "nadam", 1),
    "Muon, last step, M = D": ("last-step", "muon", 1),
}
"""Policy and optimizer of each on microbatches, and how many of these there are for a stage."""
_AVERAGED = {
    f"{kind}, every {every}": Averaging(every, outer=kind == "DiLoCo")
    for kind in ("local SGD", "DiLoCo")
    for every in (8, 64)
}
"""On so many workers as others have stages, each with a part of a minibatch."""
METHODS = (*_PLAIN, *_WHOLE, *_DIVIDED, *_AVERAGED)
"""In the order of the tables' rows."""
_FORMER = {
    "NAG": "NAG, momentum per stage",
    "2BW": "2BW with error feedback",
    "Muon, 2BW": "Muon, 2BW with error feedback",
}
"""Methods that are settled, by those that they follow in tables: only their rows are left."""
_MORE: dict[str, dict[str, object]] = {
    # T1 over the first quarter, as pipemare §3.1 suggests, and T2.
    "PipeMare": {"correction_decay": SUGGESTED_CORRECTION_DECAY},
}


def optimizer_of(method: str) -> str:
    """Return the name of the optimizer that a method trains with."""
    if method in _DIVIDED:
        return _DIVIDED[method][1]
    if method in _AVERAGED:
        return "adamw"
    return _WHOLE[method][1] if method in _WHOLE else _PLAIN[method]


def method_of(name: str, stages: int, minibatches: int) -> Method:
    """Return what is run at a depth, for a number of minibatches."""
    options: dict[str, object] = {"clip_norm": _CLIP, **_MORE.get(name, {})}
    if name in _PLAIN or name in _AVERAGED:
        options |= {"schedule": "gpipe", "policy": "sync"}
    elif name in _WHOLE:
        options |= {"policy": _WHOLE[name][0]}
    else:
        policy, _, of_stage = _DIVIDED[name]
        parts = min(of_stage * stages, _SMALLEST_MINIBATCH)
        options |= {"policy": policy, "microbatches": parts}
    if name == "PipeMare":
        options |= {"annealing_minibatches": minibatches // 4}
    return Method.model_validate(options)


class ToLoss(LearningStudy):
    """Samples to plain training's loss, by task, method and depth."""

    name = "to-loss"
    question = "How many samples does each method need to plain training's loss?"
    needs = Needs(hours=30)
    target_share = 1
    longest = 3
    each_seed = True

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every method and depth on two tasks; few on the large decoder."""
        if short:
            return [_case("digits", name, 2, planned=16, seeds=1) for name in (PLAIN, DIVIDED)]
        chosen: dict[str, tuple[Sequence[str], Sequence[int]]] = {
            "library": (METHODS, DEPTHS),
            "digits": (METHODS, DEPTHS),
            "library-large": ((PLAIN, WHOLE, DIVIDED), (4,)),
        }
        more = {} if seeds is None else {"seeds": seeds}
        cases = {
            _case(task, name, depth, own_rate=own_rate, **more): None
            for task, (methods, depths) in chosen.items()
            for name in methods
            for depth in depths
            for own_rate in (True, False)
            if own_rate or _keeps_rate(name)
        }
        return list(cases)

    def methods(self, case: Case) -> Mapping[str, Late]:
        """Return all; plain training is the first."""
        return {
            name: Late(method_of(name, case.stages, case.planned), averaging=_AVERAGED.get(name))
            for name in METHODS
        }

    def baseline(self, case: Case) -> Case:
        """Return plain training, whose optimizer is not every method's."""
        plain = super().baseline(case)
        return plain.model_copy(update={"optimizer": optimizer_of(PLAIN)})

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        """Return a table for each task, and for those at plain training's rate."""
        tables = {}
        for task in dict.fromkeys(row.case.task for row in rows):
            of_task = [row for row in rows if row.case.task == task]
            plain = next((r for r in of_task if r.case.method == PLAIN and r.case.own_rate), None)
            if plain is None:
                continue
            planned = plain.case.planned
            tables[
                f"{TASKS[task].title} ({task}): samples to the loss of {PLAIN} after {planned} "
                f"minibatches (first seed: {plain.targets[0]:.3f}), relative to these; in brackets "
                "the best rate in thousandths, and the held-out loss after as many; ± over seeds"
            ] = _table(of_task, own_rate=True)
            if not any(not row.case.own_rate for row in of_task):
                continue
            tables[
                f"{task}: the same at {2.0**plain.power:g} thousandths, where {PLAIN} ends best"
            ] = _table(of_task, own_rate=False)
        return tables


def _case(task: str, method: str, stages: int, **others: object) -> Case:
    usual = {
        "task": task,
        "optimizer": optimizer_of(method),
        "method": method,
        "stages": 1 if method in _PLAIN else stages,
        "planned": TASKS[task].minibatches,
    }
    return Case.model_validate(usual | others)


def _keeps_rate(method: str) -> bool:
    """Return whether a method may take plain training's rate: its optimizer is the same."""
    return method not in _PLAIN and optimizer_of(method) == optimizer_of(PLAIN)


def _table(rows: Sequence[Learned], *, own_rate: bool) -> DataFrame:
    found = {
        (row.case.method, row.case.stages): row for row in rows if row.case.own_rate == own_rate
    }
    depths = sorted({stages for method, stages in found if method not in _PLAIN})
    lines = []
    for method in (name for one in METHODS for name in (one, _FORMER.get(one)) if name):
        cells = {
            f"depth {depth}": _cell(found.get((method, 1 if method in _PLAIN else depth)))
            for depth in depths
        }
        if set(cells.values()) != {"–"}:
            lines.append({"method": method, **cells})
    return DataFrame(lines)


def _cell(row: Learned | None) -> str:
    """Return what came out, such as ``1.10 ± 0.03 (2: 1.808 ± 0.021)``."""
    if row is None:
        return "–"
    if not row.losses:
        return "diverged"
    reached = [run.reached / row.case.planned for run in row.runs if run.reached is not None]
    if len(reached) == len(row.runs):
        text = spread(reached, 2)
    else:
        text = f"> {ToLoss.longest:g}"
        text += f" ({len(reached)} of {len(row.runs)} less)" if reached else ""
    loss = spread(list(row.losses.values()))
    return f"{text} ({2.0**row.power:g}: {loss})" if row.case.own_rate else f"{text} ({loss})"


STUDY = ToLoss()
