"""Messages between workers: receives are posted early, sends never wait.

Before the first minibatch workers check that they expect the messages that others send. Gloo copies
a message that is shorter than its buffer and silently leaves the rest of the buffer as it was. It
ends the process for a message that is longer. NCCL waits for ever.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.errors import RunFailure
from drlpp.runtime.comm.transport import Links, Transfer
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import TIED_PAYLOADS, Action, Message, Receive, Send
from drlpp.schedule.analysis.messages_ahead import Ahead


def contents_of(programs: Sequence[StageProgram], message: Message) -> list[TensorSpec]:
    """Return a message's tensors, in the order they travel.

    It comes from the stage of one of ``programs``, or goes to it.
    """
    ends = message.source_stage, message.target_stage
    program = next(program for program in programs if program.stage in ends)
    if message.payload in TIED_PAYLOADS:
        # Behind the gradients a number for each, as in StageWeights.contribution.
        specs = list(program.ties[message.microbatch].values())
        return [*specs, TensorSpec(shape=(len(specs),), dtype="float32", bytes_=4 * len(specs))]
    arrives = message.target_stage == program.stage
    stage = message.source_stage if arrives else message.target_stage
    forwards = message.payload == "activation"
    contents = (program.receives if arrives == forwards else program.sends)[stage]
    return [spec for _, spec in contents if forwards or spec.differentiable]


class Mailbox:
    """Sends and receives the messages of one worker, in the order of its schedule.

    Attributes:
        message_bytes: of the largest message to every worker that has got any.
    """

    def __init__(
        self,
        links: Links,
        programs: Sequence[StageProgram],
        actions: Sequence[Action],
        ahead: Ahead,
    ) -> None:
        self._links = links
        self._programs = programs
        self._expected = iter([a for a in actions if isinstance(a, Receive)])
        self._posted: deque[tuple[Message, Transfer]] = deque()
        # Once the pipeline is full, no more are on their way to one worker: it has received the
        # oldest, or has the place for it ready, when this one is sent.
        self._most_unconfirmed = ahead.sends
        self._unconfirmed: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self.message_bytes: dict[int, int] = {}
        for action in islice(self._expected, ahead.receives):
            self._post(action)

    def _post(self, action: Receive) -> None:
        specs = contents_of(self._programs, action.message)
        self._posted.append((action.message, self._links.receive(specs, action.sender)))

    def receive(self, action: Receive) -> list[Tensor]:
        """Wait for the tensors of a message."""
        message, transfer = self._posted.popleft()
        assert message == action.message
        tensors = transfer.wait()
        for following in islice(self._expected, 1):
            self._post(following)
        return tensors

    def send(self, action: Send, tensors: Sequence[Tensor]) -> None:
        """Start sending; the tensors are kept until they have arrived."""
        transfer = self._links.send(tensors, action.to)
        bytes_ = sum(tensor.nbytes for tensor in transfer.tensors)
        self.message_bytes[action.to] = max(self.message_bytes.get(action.to, 0), bytes_)
        unconfirmed = self._unconfirmed[action.to]
        unconfirmed.append(transfer)
        while len(unconfirmed) > self._most_unconfirmed:
            unconfirmed.popleft().wait()

    def drain(self) -> None:
        """Wait until everything sent has arrived."""
        for unconfirmed in self._unconfirmed.values():
            while unconfirmed:
                unconfirmed.popleft().wait()


def verify_message_plan(
    group: dist.ProcessGroup,
    workers: Sequence[int],
    worker: int,
    programs: Sequence[StageProgram],
    actions: Sequence[Action],
) -> None:
    """Compare what each worker is to send with what the others are to receive from it.

    For each pair of workers and each direction both sides take a hash of all messages, in order,
    with the shapes and types of their tensors.

    Raises:
        RunFailure: on every worker, if a pair disagrees.
    """
    if len(workers) == 1:
        return
    own = _hashes(workers, programs, actions)
    everyones = [torch.empty_like(own) for _ in workers]
    group.allgather([everyones], [own]).wait()
    # (senders, receivers) both, after the second is turned.
    sent, expected = torch.stack(everyones).unbind(1)
    for sender, receiver in (sent != expected.T).nonzero().tolist():
        raise RunFailure(
            f"worker {workers[receiver]} expects other messages from worker {workers[sender]} than "
            "that is going to send: their number, their order, or the shapes or types of their "
            "tensors differ; all hosts need the same versions of drlpp and torch"
        )


def _hashes(
    workers: Sequence[int], programs: Sequence[StageProgram], actions: Sequence[Action]
) -> torch.Tensor:
    """Return hashes of messages to (0) and from (1) every worker, (2, workers), 8 bytes each."""
    sent: dict[int, list[int]] = {worker: [] for worker in workers}
    received: dict[int, list[int]] = {worker: [] for worker in workers}
    contents: dict[tuple[str, int, int, int], int] = {}
    for action in actions:
        if isinstance(action, Send):
            messages = sent[action.to]
        elif isinstance(action, Receive):
            messages = received[action.sender]
        else:
            continue
        message = action.message
        tie = message.microbatch if message.payload in TIED_PAYLOADS else -1
        edge = message.payload, message.source_stage, message.target_stage, tie
        if edge not in contents:
            tensors = [(spec.shape, spec.dtype) for spec in contents_of(programs, message)]
            contents[edge] = _hash(repr((edge, tensors)).encode())
        messages += contents[edge], message.minibatch, message.microbatch
    return torch.tensor(
        [
            [_hash(np.array(numbers, dtype="<i8").tobytes()) for numbers in column.values()]
            for column in (sent, received)
        ]
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
