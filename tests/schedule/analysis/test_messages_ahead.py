"""Whatever the schedule, workers that wait for what they sent do not wait for each other."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

from hypothesis import given, settings

from drlpp.schedule.actions import AllReduce, Message, Receive, Send
from drlpp.schedule.analysis.messages_ahead import Ahead, ahead_of
from drlpp.schedule.schedule import Schedule
from tests.support.strategies.schedules import scheduled


def ends(schedule: Schedule, ahead: Mapping[int, Ahead]) -> bool:
    """Whether all workers end where a message leaves only once its receive is posted."""
    expected = {
        (action.message, worker): number
        for worker, actions in schedule.actions.items()
        for number, action in enumerate(a for a in actions if isinstance(a, Receive))
    }
    position, taken = Counter[int](), Counter[int]()
    sent: set[tuple[Message, int]] = set()
    unconfirmed: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
    arrived: defaultdict[AllReduce, set[int]] = defaultdict(set)

    def waits(worker: int) -> bool:
        action = schedule.actions[worker][position[worker]]
        if isinstance(action, AllReduce):
            arrived[action].add(worker)
            return len(arrived[action]) < len(action.workers)
        if isinstance(action, Receive):
            return (action.message, worker) not in sent
        if isinstance(action, Send):
            to, own = action.to, unconfirmed[worker, action.to]
            if (action.message, to) not in sent:
                sent.add((action.message, to))
                own.append(action.message)
            while (
                len(own) > ahead[worker].sends
                and expected[own[0], to] < taken[to] + ahead[to].receives
            ):
                own.popleft()
            return len(own) > ahead[worker].sends
        return False

    going = True
    while going:
        going = False
        for worker, actions in schedule.actions.items():
            while position[worker] < len(actions) and not waits(worker):
                taken[worker] += isinstance(actions[position[worker]], Receive)
                position[worker] += 1
                going = True
    return all(position[worker] == len(own) for worker, own in schedule.actions.items())


@given(scheduled())
@settings(max_examples=200)
def test_no_worker_waits_for_ever_for_what_it_sent(
    found: tuple[Schedule, tuple[int, ...]],
) -> None:
    schedule, in_flight = found
    pipeline = schedule.pipeline
    workers = schedule.actions
    assert ends(schedule, {w: ahead_of(pipeline, in_flight, (), w) for w in workers})
