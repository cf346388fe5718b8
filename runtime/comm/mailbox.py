"""Messages between workers: receives are posted early, sends never wait."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice

import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.comm.agreement import contents_of
from drlpp.runtime.comm.transport import Links, Transfer
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import TIED_PAYLOADS, Action, Message, Receive, Send

# With a name of its source file before it, and advice behind.
_OF_GLOO = re.compile(r"gloo/transport/\S+\] (.*?)(?:\. This is typically|$)")
# What torch says of NCCL's codes; system errors are of sockets, and of much else on this host.
_OF_NCCL = re.compile(
    r"(ncclRemoteError: .*|NCCL communicator was aborted.*)"
    r"|ncclSystemError: .*Last error: (.*(?:remote peer|[Cc]onnection re).*)"
)


def build_group(
    store: dist.Store,
    name: str,
    workers: Sequence[int],
    worker: int,
    address: str,
    timeout_seconds: float,
) -> dist.ProcessGroup:
    """Build a Gloo group of ``workers``, on its own prefix of the store.

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


def broken_connection(error: BaseException) -> str | None:
    """Return what Gloo or NCCL say of a broken connection, or one that timed out; else None."""
    text = " ".join(str(error).split())
    if found := _OF_GLOO.search(text):
        return found[1]
    found = _OF_NCCL.search(text)
    return found and (found[1] or found[2])


class Mailbox:
    """Sends and receives the messages of one worker, in the order of its schedule.

    Args:
        links: the ways to the other workers.
        programs: the stages of this worker, for minibatches in each shape of the task; they say
            what the messages contain.
        bucket_of: says which of these shapes a minibatch has.
        actions: all that this worker will do.
        posted: how many receives are posted ahead.

    Attributes:
        bytes_sent: of all messages so far.
        message_bytes: of the largest message to every worker that has got any.
    """

    def __init__(
        self,
        links: Links,
        programs: Sequence[Sequence[StageProgram]],
        bucket_of: Callable[[int], int],
        actions: Sequence[Action],
        posted: int,
    ) -> None:
        self._links = links
        self._programs = programs
        self._bucket_of = bucket_of
        self._expected = iter([a for a in actions if isinstance(a, Receive)])
        self._posted: deque[tuple[Message, Transfer]] = deque()
        # More messages than these are not on their way to one worker: it has received the oldest,
        # or had the place for it ready, before it could let this one come so far.
        self._most_unconfirmed = posted
        self._unconfirmed: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self.bytes_sent = 0
        self.message_bytes: dict[int, int] = {}
        for action in islice(self._expected, posted):
            self._post(action)

    def _post(self, action: Receive) -> None:
        message, bucket = action.message, 0
        if len(self._programs) > 1 and message.payload not in TIED_PAYLOADS:
            # The memory for a message is made before it comes, and has to have its shape.
            bucket = self._bucket_of(message.minibatch)
        specs = contents_of(self._programs[bucket], message)
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
        self.bytes_sent += bytes_
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
