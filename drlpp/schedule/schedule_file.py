"""A schedule as a text file: what it is a schedule of, then a line for each worker.

Asynchronous 1F1B of two minibatches on two stages, whose edge leads gradients back::

    drlpp schedule: 1
    kind: 1f1b
    minibatches: 2
    microbatches: 1
    stage 0: 0
    stage 1: 1
    edges: 0<>1
    worker 0: F0.0 sF0.0:0>1@1 F1.0 sF1.0:0>1@1 rB0.0:1>0@1 B0.0 U1 rB1.0:1>0@1 B1.0 U2
    worker 1: rF0.0:0>1@0 F0.0 B0.0 sB0.0:1>0@0 U1 rF1.0:0>1@0 F1.0 B1.0 sB1.0:1>0@0 U2

An edge ``0>1`` leads none back. A line ``ties: 0+3`` behind the edges, if there is one, names the
stages that hold copies of the same weights. Actions look as in :mod:`drlpp.schedule.action_text`;
empty lines, and lines that begin with ``#``, are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path

from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.documents import read_text, write_atomically
from drlpp.schedule.action_text import action_text, actions_text, parse_actions
from drlpp.schedule.actions import (
    TIED_PAYLOADS,
    Action,
    AllReduce,
    MicrobatchId,
    Pass,
    Receive,
    Send,
    TiedUpdate,
)
from drlpp.schedule.kinds.registry import find_schedule_kind
from drlpp.schedule.pipeline import Pipeline, StageEdge, are_folded
from drlpp.schedule.schedule import Schedule, in_order

_TITLE, _VERSION = "drlpp schedule", 1
_EDGE = re.compile(r"([0-9]{1,6})(<?>)([0-9]{1,6})")
_TIE = re.compile(r"[0-9]{1,6}(\+[0-9]{1,6})+")


def schedule_text(schedule: Schedule) -> str:
    """Write a schedule as the text of a file."""
    pipeline = schedule.pipeline
    edges = [f"{e.source}{'<>' if e.differentiable else '>'}{e.target}" for e in pipeline.edges]
    ties = ["+".join(map(str, stages)) for stages in pipeline.ties]
    lines = [
        f"{_TITLE}: {_VERSION}",
        f"kind: {schedule.kind}",
        f"minibatches: {schedule.minibatches}",
        f"microbatches: {schedule.microbatches}",
        *(f"stage {k}: {' '.join(map(str, w))}" for k, w in enumerate(pipeline.stages)),
        f"edges: {' '.join(edges)}".rstrip(),
        *([f"ties: {' '.join(ties)}"] if ties else []),
        *(f"worker {w}: {actions_text(a)}".rstrip() for w, a in schedule.actions.items()),
    ]
    return "\n".join(lines) + "\n"


def write_schedule(path: str | Path, schedule: Schedule) -> Path:
    """Write a schedule to a file.

    Raises:
        InvalidFile: it cannot be written.
    """
    return write_atomically(Path(path), schedule_text(schedule).encode())


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule that a process can perform from a file.

    Raises:
        InvalidFile: naming the file, the field, and what is wrong there.
    """
    return parse_schedule(read_text(Path(path)), str(path))


def parse_schedule(text: str, where: str = "schedule") -> Schedule:
    """Read a schedule from the text of a file.

    Raises:
        InvalidFile: naming ``where`` the text is from, the field, and what is wrong there.
    """
    fields = _Fields()
    try:
        fields.fill(text)
        schedule = _schedule(fields)
    except InvalidInput as error:
        raise InvalidFile(f"{where}: field '{fields.current}': {error}") from None
    try:
        for _ in in_order(schedule):
            pass
    except RuntimeError as error:
        raise InvalidFile(f"{where}: {error}") from None
    return schedule


class _Fields:
    """The fields of a file; each is taken once, and ``current`` is the one that is being read."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.current = _TITLE

    def fill(self, text: str) -> None:
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            field, _, value = line.partition(":")
            if field in self.values:
                self.current = field
                raise InvalidInput("is there twice")
            self.values[field] = value

    def take(self, field: str) -> str:
        self.current = field
        if field not in self.values:
            raise InvalidInput("is missing")
        return self.values.pop(field)

    def numbers(self, field: str) -> tuple[int, ...]:
        words = self.take(field).split()
        if not words or not all(re.fullmatch("[0-9]{1,15}", word) for word in words):
            raise InvalidInput(f"expected numbers, found {' '.join(words)[:40]!r}")
        return tuple(map(int, words))

    def number(self, field: str) -> int:
        first, *others = self.numbers(field)
        if others or not first:
            raise InvalidInput("expected one number, at least 1")
        return first


def _schedule(fields: _Fields) -> Schedule:
    if fields.number(_TITLE) != _VERSION:
        raise InvalidInput(f"expected version {_VERSION}, which is what this drlpp reads")
    kind = find_schedule_kind(fields.take("kind").strip())
    minibatches, microbatches = fields.number("minibatches"), fields.number("microbatches")
    stages = [fields.numbers("stage 0")]
    while (field := f"stage {len(stages)}") in fields.values:
        stages.append(fields.numbers(field))
    workers = sorted(worker for stage in stages for worker in stage)
    if len(set(workers)) < len(workers) and not are_folded(stages):
        raise InvalidInput("a worker is in two stages")
    edges = tuple(_edge(word, len(stages)) for word in fields.take("edges").split())
    named = fields.take("ties").split() if "ties" in fields.values else []
    ties = tuple(_tie(word, len(stages)) for word in named)
    pipeline = Pipeline(tuple(stages), edges, ties)
    schedule = Schedule(kind.name, pipeline, minibatches, microbatches, {})
    for worker in schedule.pipeline.stages_by_worker:
        actions = parse_actions(fields.take(f"worker {worker}"))
        for action in actions:
            _check(action, schedule)
        schedule.actions[worker] = actions
    for field in fields.values:
        fields.take(field)
        raise InvalidInput("is unknown here")
    return schedule


def _edge(word: str, stages: int) -> StageEdge:
    found = _EDGE.fullmatch(word)
    if found is None or not int(found[1]) < int(found[3]) < stages:
        raise InvalidInput(f"expected edges such as 0<>1 or 0>1, found {word[:40]!r}")
    return StageEdge(int(found[1]), int(found[3]), differentiable=found[2] == "<>")


def _tie(word: str, stages: int) -> tuple[int, ...]:
    tied = tuple(map(int, word.split("+"))) if _TIE.fullmatch(word) else ()
    if len(tied) < 2 or sorted(set(tied)) != list(tied) or tied[-1] >= stages:
        raise InvalidInput(f"expected stages such as 0+3, found {word[:40]!r}")
    return tied


def _check(action: Action, schedule: Schedule) -> None:
    """Check that an action names only parts and workers that the schedule has."""
    parts: tuple[MicrobatchId, ...] = ()
    named: tuple[int, ...] = ()
    ties: tuple[int, ...] = ()
    match action:
        case Pass():
            parts = (action.part,)
        case Send(message, other) | Receive(message, other):
            named = (other,)
            if message.payload in TIED_PAYLOADS:
                ties, parts = (message.microbatch,), ((message.minibatch, 0),)
            else:
                parts = ((message.minibatch, message.microbatch),)
        case AllReduce(_, members, "tied_gradients", tie):
            named, ties = members, (tie,)
        case AllReduce(_, members):
            named = members
        case TiedUpdate(tie=tie):
            ties = (tie,)
    for minibatch, microbatch in parts:
        if minibatch >= schedule.minibatches or microbatch >= schedule.microbatches:
            raise InvalidInput(f"{action_text(action)}: there is no such part")
    if any(tie >= len(schedule.pipeline.ties) for tie in ties):
        raise InvalidInput(f"{action_text(action)}: there is no such tie")
    if not set(schedule.pipeline.workers).issuperset(named):
        raise InvalidInput(f"{action_text(action)}: there is no such worker")
