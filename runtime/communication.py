"""Messages between workers over Gloo: receives are posted early, sends never wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.graph import TensorSpec
from drlpp.runtime.stages import StageProgram
from drlpp.schedule import Action, Message, Receive, Send


def build_group(
    store: dist.Store,
    name: str,
    workers: Sequence[int],
    worker: int,
    address: str,
    timeout_seconds: float,
) -> dist.ProcessGroup:
    """A Gloo group of ``workers``, on its own prefix of the store.

    ``worker`` listens on ``address``, which is that of its host, and on no other.

    A group is never repaired: a trial gets a new one, so that nothing of an abandoned trial can
    arrive in the next.
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_seconds)
    prefixed = dist.PrefixStore(name, store)
    rank, size = workers.index(worker), len(workers)
    return dist.ProcessGroupGloo(prefixed, rank, size, options)  # type: ignore[return-value]


class Mailbox:
    """Sends and receives the messages of one worker, in the order of its schedule.

    Every tensor of a message has a tag of its own, counted per pair of workers on both sides, as
    both sides handle their messages in the same order.

    Args:
        group: of all workers of the placement.
        ranks: the workers in the order of their ranks.
        program: the stage of this worker; says what the messages contain.
        actions: all that this worker will do.
        posted: how many receives are posted ahead.

    Attributes:
        bytes_sent: of all messages so far.
        message_bytes: of the largest message to every worker that has got any.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        ranks: Sequence[int],
        program: StageProgram,
        actions: Sequence[Action],
        posted: int,
    ) -> None:
        self._group = group
        self._ranks = {worker: rank for rank, worker in enumerate(ranks)}
        self._program = program
        self._tags_received = [0] * len(ranks)
        self._tags_sent = [0] * len(ranks)
        self._expected = iter([a for a in actions if isinstance(a, Receive)])
        self._posted: deque[tuple[Message, list[Tensor], list[dist.Work]]] = deque()
        # More messages than these cannot be on their way: whoever is to receive the oldest has
        # long answered it.
        self._most_unconfirmed = 4 * posted + 16
        self._unconfirmed: deque[tuple[list[Tensor], list[dist.Work]]] = deque()
        self.bytes_sent = 0
        self.message_bytes: dict[int, int] = {}
        for action in islice(self._expected, posted):
            self._post(action)

    def _post(self, action: Receive) -> None:
        rank = self._ranks[action.sender]
        tensors, works = [], []
        for spec in self._contents(action.message):
            tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
            works.append(self._group.recv([tensor], rank, self._tags_received[rank]))
            self._tags_received[rank] += 1
            tensors.append(tensor)
        self._posted.append((action.message, tensors, works))

    def _contents(self, message: Message) -> list[TensorSpec]:
        if message.payload == "activation":
            return [spec for _, spec in self._program.receives[message.source_stage]]
        specs = self._program.sends[message.source_stage]
        return [spec for _, spec in specs if spec.differentiable]

    def receive(self, action: Receive) -> list[Tensor]:
        """Wait for the tensors of a message."""
        message, tensors, works = self._posted.popleft()
        assert message == action.message
        for work in works:
            work.wait()
        for following in islice(self._expected, 1):
            self._post(following)
        return tensors

    def send(self, action: Send, tensors: Sequence[Tensor]) -> None:
        """Start sending; the tensors are kept until they have arrived."""
        rank = self._ranks[action.to]
        kept, works = [], []
        for tensor in tensors:
            kept.append(tensor.detach().contiguous())
            works.append(self._group.send([kept[-1]], rank, self._tags_sent[rank]))
            self._tags_sent[rank] += 1
        bytes_ = sum(tensor.nbytes for tensor in kept)
        self.bytes_sent += bytes_
        self.message_bytes[action.to] = max(self.message_bytes.get(action.to, 0), bytes_)
        self._unconfirmed.append((kept, works))
        while len(self._unconfirmed) > self._most_unconfirmed:
            self._confirm_oldest()

    def _confirm_oldest(self) -> None:
        _, works = self._unconfirmed.popleft()
        for work in works:
            work.wait()

    def drain(self) -> None:
        """Wait until everything sent has arrived."""
        while self._unconfirmed:
            self._confirm_oldest()
