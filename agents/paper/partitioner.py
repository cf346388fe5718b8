"""The recurrent partitioner: graph cutter and candidate selector (drl-pp §3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from drlpp.agents.paper.scheduler import drawn, entropies
from drlpp.agents.paper.walk import CUT, Decision, PartitionWalk, Walk
from drlpp.capturing.graph import OpGraph

CALIBRATION_WALKS = 32


class Recurrence(nn.Module):
    """One LSTM layer, stepped by hand, whose inputs are projected once.

    The partitioner needs the state after every operator, and from each of those states one step
    for every candidate, so it shares the projections and the states. A state is one tensor, hidden
    and cell side by side. The arithmetic and the initial weights are those of
    ``torch.nn.LSTMCell``.

    Args:
        in_features: F_in.
        units: width of the hidden and of the cell state.
    """

    def __init__(self, in_features: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.input = nn.Linear(in_features, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def initial(self, batch: int) -> Tensor:
        """Return the state H̃ of an empty partition (line 1), zeros: ``(batch, 2·units)``."""
        return self.recurrent.weight.new_zeros(batch, 2 * self.units)

    def from_states(self, states: Tensor) -> Tensor:
        """Return what ``states`` add to the gates of the next step, ``(batch, 4·units)``."""
        return self.recurrent(states[..., : self.units])

    def cell(self, states: Tensor) -> Tensor:
        """Return the cell half of ``states``."""
        return states[..., self.units :]

    def advance(self, gates: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step from cell states alone; return hidden and cell states apart."""
        enter, forget, update, leave = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cells + enter.sigmoid() * update.tanh()
        return leave.sigmoid() * cell.tanh(), cell

    def forward(self, projected: Tensor, states: Tensor) -> Tensor:
        """Take one step from projected inputs, ``(batch, 4·units)``."""
        gates = projected + self.from_states(states)
        return torch.cat(self.advance(gates, self.cell(states)), dim=-1)


class RecurrentPartitioner(nn.Module):
    r"""Scores the choices of a walk through the graph (drl-pp §3.2, Algorithm 1).

    In partition k, with H_v the representation of operator v, u the units of both LSTMs, and
    H̃_{G_k} the state (hidden and cell) of the cutter's LSTM:

    - H_{G_k} = Σ_{v ∈ G_k} H_v (line 12);
    - cutter: H̃_{G_k} = LSTM(H̃_{G_{k−1}}, {H_{G_k}}), S_{G_k} = MLP(H̃_{G_k}) (lines 13, 14);
    - selector: S_v = MLP(LSTM(H̃_{G_{k−1}}, {H_w : w ∈ G_k} ∪ {H_v})) for every candidate
      (line 15), the operators of G_k in the order of the walk;
    - P = softmax({S_cut} ∪ {S_v : v ∈ V_c}) with S_cut = S_{G_k} − T (lines 10, 16).

    Where Algorithm 1 leaves a choice, it is made so: line 10 cuts by the score of the current
    partition, or the cut could not depend on what is cut; line 13 starts from H̃_{G_{k−1}}, as line
    15 does, with H̃_{G_0} = 0; line 14 scores the *encoded* summary; a start after a cut (line 21)
    is chosen from the P of that cut without the cut, the first (line 3) from the scores of an empty
    partition; after the last cut (line 23) no start is chosen.

    The sum H_{G_k} is divided by the number of operators of the graph. This changes no function
    that the networks can represent, only their scale at the start, where the sum of a hundred
    representations would saturate every gate.

    Args:
        graph: the graph to partition.
        partitions: K, the largest number of partitions.
        units: width of representations, LSTMs and of the one hidden layer of each MLP
            (drl-pp §4.2: 128).
        temperature: T. The paper calls it the "temperature of encouraging exploration" and gives
            no value; no constant suits every graph, since a walk of N operators has about N
            occasions to cut. With ``"auto"``, :meth:`calibrate` solves for the T at which an
            untrained policy expects K − 1 cuts.
    """

    temperature: Tensor

    def __init__(
        self,
        graph: OpGraph,
        partitions: int,
        units: int = 128,
        temperature: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        self.graph = graph
        self.partitions = partitions
        self.automatic_temperature = temperature == "auto"
        self.cutter = Recurrence(units, units)
        self.cut_score = _score(units)
        self.selector = Recurrence(units, units)
        self.candidate_score = _score(units)
        initial = 0.0 if temperature == "auto" else float(temperature)
        self.register_buffer("temperature", torch.tensor(initial))

    @torch.no_grad()
    def calibrate(self, nodes: Tensor) -> None:
        """Choose T for the weights as they are now, if ``temperature="auto"``.

        Walks without cuts are sampled. If g = log Σ_v exp(S_v) − S_{G_k} at one of their choices,
        a cut has the probability sigmoid(−T − g) there, and T is solved for by bisection so that
        these probabilities sum to K − 1 in the mean over the walks.
        """
        if not self.automatic_temperature or self.partitions == 1:
            return
        self.temperature.fill_(torch.inf)
        walks = self.sample(nodes, CALIBRATION_WALKS, partitions=len(self.graph))
        self.temperature.zero_()
        decisions = [
            (index, decision)
            for index, walk in enumerate(walks)
            for decision in walk.decisions
            if decision.may_cut
        ]
        if not decisions:
            return
        logits = self._replay_logits(nodes, walks, decisions)
        gap = logits[:, 1:].logsumexp(dim=1) - logits[:, 0]
        # No more than half of the choices can be cuts, or there would be no T on small graphs.
        wanted = min(self.partitions - 1, len(decisions) / len(walks) / 2)
        low, high = -100.0, 100.0
        for _ in range(50):
            middle = (low + high) / 2
            cuts = torch.sigmoid(-middle - gap).sum().item() / len(walks)
            low, high = (middle, high) if cuts > wanted else (low, middle)
        self.temperature.fill_((low + high) / 2)

    @torch.inference_mode()
    def sample(
        self,
        nodes: Tensor,
        count: int,
        deterministic: bool = False,
        partitions: int | None = None,
    ) -> list[PartitionWalk]:
        """Walk through the graph ``count`` times, all walks in step.

        Args:
            nodes: representations of the operators, ``(operators, units)``.
            count: number of walks.
            deterministic: take the likeliest choice every time instead of sampling.
            partitions: K, if another than the partitioner's.
        """
        graph, most = self.graph, partitions or self.partitions
        walks = [Walk(graph.predecessors, graph.successors, most) for _ in range(count)]
        projected = self.selector.input(nodes)
        cutter = self.cutter.initial(count)
        carried = self.cutter.from_states(cutter)
        selector = self.selector.initial(count)
        summaries = nodes.new_zeros(count, nodes.shape[1])
        while active := [index for index, walk in enumerate(walks) if not walk.finished]:
            candidates = [walks[index].candidates for index in active]
            logits, reached = self._logits(
                projected,
                carried[active],
                cutter[active],
                selector[active],
                summaries[active],
                candidates,
                [not walks[index].begins for index in active],
            )
            log_probs = logits.log_softmax(dim=1)
            columns = drawn(log_probs, deterministic)
            taken = log_probs.gather(1, columns).squeeze(1).tolist()
            # Operators that the selector has still to read, and those that it read as candidates.
            added: dict[int, tuple[int, ...]] = {}
            known: dict[int, tuple[int, int]] = {}
            new_partitions = []
            before = 0
            for index, operators, column, log_prob in zip(
                active, candidates, columns.squeeze(1).tolist(), taken, strict=True
            ):
                walk = walks[index]
                starts_again = walk.begins and walk.cuts > 0
                if starts_again:
                    new_partitions.append(index)
                added[index] = walk.take(column - 1 if column else CUT, log_prob)
                if len(added[index]) == 1 and not starts_again:
                    known[index] = before + column - 1, added.pop(index)[0]
                before += len(operators)
            if new_partitions:
                projected_summaries = self.cutter.input(summaries[new_partitions])
                cutter[new_partitions] = self.cutter(projected_summaries, cutter[new_partitions])
                carried[new_partitions] = self.cutter.from_states(cutter[new_partitions])
                selector[new_partitions] = cutter[new_partitions]
                summaries[new_partitions] = 0.0
            if known:
                rows, places = list(known), [place for place, _ in known.values()]
                selector[rows] = torch.cat([half[places] for half in reached], dim=1)
                summaries[rows] += nodes[[op for _, op in known.values()]] / len(self.graph)
            for position in range(max(map(len, added.values()), default=0)):
                rows = [index for index in added if len(added[index]) > position]
                read = [added[index][position] for index in rows]
                selector[rows] = self.selector(projected[read], selector[rows])
                summaries[rows] += nodes[read] / len(self.graph)
        return [walk.result() for walk in walks]

    def evaluate(self, nodes: Tensor, walks: Sequence[PartitionWalk]) -> tuple[Tensor, Tensor]:
        """Replay walks: log-probability of every free choice, and entropy of its distribution.

        Args:
            nodes: representations of the operators, ``(operators, units)``.
            walks: what :meth:`sample` returned, under these weights or others.

        Returns:
            Two tensors of shape ``(choices,)``: the choices that were not forced, walk by walk.
        """
        decisions = [
            (index, decision)
            for index, walk in enumerate(walks)
            for decision in walk.decisions
            if not decision.forced
        ]
        if not decisions:
            return nodes.new_zeros(0), nodes.new_zeros(0)
        log_probs = self._replay_logits(nodes, walks, decisions).log_softmax(dim=1)
        columns = torch.tensor([[decision.choice + 1] for _, decision in decisions])
        spread = entropies(log_probs)
        return log_probs.gather(1, columns.to(nodes.device)).squeeze(1), spread

    def _replay_logits(
        self,
        nodes: Tensor,
        walks: Sequence[PartitionWalk],
        decisions: Sequence[tuple[int, Decision]],
    ) -> Tensor:
        """Return the logits of pairs (walk, decision), from one pass over the walks."""
        projected = self.selector.input(nodes)
        longest = max(len(walk.order) for walk in walks)
        padded = [walk.order + (0,) * (longest - len(walk.order)) for walk in walks]
        # One row after the other: position by position, and all walks at each.
        order = torch.tensor(padded, device=nodes.device).T.flatten()
        count, starts = len(walks), _padded_starts(walks)
        walked = (nodes.index_select(0, order) / len(self.graph)).view(longest, count, -1)
        running = nn.functional.pad(walked.cumsum(dim=0), (0, 0, 0, 0, 1, 0)).flatten(end_dim=1)
        at_starts = _rows(running, starts * count + torch.arange(count)[:, None])
        cutter = self._cutter_states(at_starts)
        inputs = projected.index_select(0, order).view(longest, count, -1)
        selector = self._selector_states(inputs, cutter, starts)
        walk = torch.tensor([index for index, _ in decisions])
        placed = torch.tensor([decision.placed for _, decision in decisions])
        partition = torch.tensor([decision.partition for _, decision in decisions])
        begun = walk * starts.shape[1] + partition
        now = placed * count + walk
        logits, _ = self._logits(
            projected,
            _rows(self.cutter.from_states(cutter).flatten(end_dim=1), begun),
            _rows(cutter.flatten(end_dim=1), begun),
            _rows(selector.flatten(end_dim=1), now),
            _rows(running, now) - _rows(at_starts.flatten(end_dim=1), begun),
            [decision.candidates for _, decision in decisions],
            [decision.may_cut for _, decision in decisions],
        )
        return logits

    def _cutter_states(self, at_starts: Tensor) -> Tensor:
        """Return H̃_{G_{k−1}} for every walked partition k, ``(walks, K, 2·units)``.

        Args:
            at_starts: the sum of what was walked to before every partition, ``(walks, K, units)``.
        """
        states = [self.cutter.initial(len(at_starts))]
        for summary in at_starts.diff(dim=1).unbind(dim=1):
            states.append(self.cutter(self.cutter.input(summary), states[-1]))
        return torch.stack(states, dim=1)

    def _selector_states(self, inputs: Tensor, cutter: Tensor, starts: Tensor) -> Tensor:
        """Return the selector's states after 0, 1, … operators.

        Their shape is ``(longest + 1, walks, 2·units)``.

        Args:
            inputs: to the LSTM, ``(longest, walks, 4·units)``.
            cutter: H̃_{G_{k−1}}, from which every partition starts.
            starts: the first positions of the partitions, ``(walks, K)``.
        """
        states = [cutter[:, 0]]
        for position, projected in enumerate(inputs.unbind(dim=0)):
            before = states[-1]
            rows, partitions = (starts == position).nonzero(as_tuple=True)
            if position and len(rows):
                first = _rows(cutter.flatten(end_dim=1), rows * starts.shape[1] + partitions)
                before = before.index_copy(0, rows.to(before.device), first)
            states.append(self.selector(projected, before))
        return torch.stack(states)

    def _logits(
        self,
        projected: Tensor,
        cutter_gates: Tensor,
        cutter: Tensor,
        selector: Tensor,
        summaries: Tensor,
        candidates: Sequence[tuple[int, ...]],
        may_cut: Sequence[bool],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Score the cut (column 0) and the candidates, −∞ where there is none.

        The selector's states, hidden and cell, after each of the candidates are returned as well,
        one choice's after the other's, ``(candidates of all choices, units)``.

        Args:
            projected: the selector's input projection of all operators.
            cutter_gates: what H̃_{G_{k−1}} adds to the cutter's gates, ``(choices, 4·units)``.
            cutter: H̃_{G_{k−1}}, ``(choices, 2·units)``.
            selector: the selector's state after the operators of G_k, ``(choices, 2·units)``.
            summaries: H_{G_k}, ``(choices, units)``.
            candidates: V_c at each choice.
            may_cut: whether a cut is possible at each choice.
        """
        counts = torch.tensor([len(operators) for operators in candidates])
        rows = torch.arange(len(candidates)).repeat_interleave(counts)
        columns = torch.arange(1, len(rows) + 1) - (counts.cumsum(dim=0) - counts)[rows]
        operators = torch.tensor([operator for row in candidates for operator in row])
        gates = _rows(projected, operators)
        # In place, since these are the largest arrays of all.
        gates += _rows(self.selector.from_states(selector), rows)
        reached = self.selector.advance(gates, _rows(self.selector.cell(selector), rows))
        scores = self.candidate_score(reached[0]).squeeze(1)
        gates = self.cutter.input(summaries) + cutter_gates
        hidden, _ = self.cutter.advance(gates, self.cutter.cell(cutter))
        cuts = self.cut_score(hidden).squeeze(1)
        logits = scores.new_full((len(candidates), 1 + int(counts.max())), -torch.inf)
        logits = logits.index_put((rows, columns), scores)
        cuttable = torch.tensor(may_cut).nonzero().squeeze(1)
        cut_column = torch.zeros_like(cuttable)
        logits = logits.index_put((cuttable, cut_column), cuts[cuttable] - self.temperature)
        return logits, reached


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return ``values[index]``, with a backward far faster than that of indexing."""
    found = values.index_select(0, index.flatten().to(values.device))
    return found.view(*index.shape, values.shape[1])


def _score(units: int) -> nn.Sequential:
    """Make an MLP with one hidden layer that ends in a score, near 0 for every input at first."""
    last = nn.Linear(units, 1)
    nn.init.orthogonal_(last.weight, gain=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(units, units), nn.Tanh(), last)


def _padded_starts(walks: Sequence[PartitionWalk]) -> Tensor:
    """Return where partitions start, ``(walks, K)``; behind the last operator if there is none."""
    most = max(len(walk.starts) for walk in walks)
    return torch.tensor(
        [walk.starts + (len(walk.order),) * (most - len(walk.starts)) for walk in walks]
    )
