"""Messages between workers: receives are posted early, sends never wait.

Both ends know what a message has from the same program and schedule, and hosts have the same
versions (``drlpp.runtime.hosts``). Nothing else tells: Gloo copies a message that is shorter than
its buffer and silently leaves the rest of the buffer as it was. It ends the process for a message
that is longer. NCCL waits for ever.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.transport import Links, Transfer
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import TIED_PAYLOADS, Action, Message, Receive, Send


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
        posted: int,
    ) -> None:
        self._links = links
        self._programs = programs
        self._expected = iter([a for a in actions if isinstance(a, Receive)])
        self._posted: deque[tuple[Message, Transfer]] = deque()
        # More messages than these are not on their way to one worker: it has received the oldest,
        # or had the place for it ready, before it could let this one come so far.
        self._most_unconfirmed = posted
        self._unconfirmed: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self.message_bytes: dict[int, int] = {}
        for action in islice(self._expected, posted):
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
