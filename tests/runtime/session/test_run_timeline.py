"""The timeline of a run."""

from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.run_timeline import timeline_of
from drlpp.schedule.actions import Backward, Forward, Update
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule


def test_predictions_belong_to_the_pass_around_them() -> None:
    schedule = build_schedule(Pipeline.straight(1), 2)
    result = RunResult(
        times=[(10.0, 12.0), (12.0, 14.0), (14.0, 15.0), (15.5, 17.0), (17.0, 18.0), (18.0, 19.0)],
        losses={},
        scores={},
        peak_memory_bytes=0,
        bytes_sent=0,
        predictions=[(10.0, 10.5), (11.5, 12.0), (12.0, 12.5), (16.0, 16.5)],
    )
    timeline = timeline_of(schedule, {0: result})
    assert [(type(t.action), t.start, t.end, t.predictions) for t in timeline] == [
        (Forward, 0.0, 2.0, ((0.0, 0.5), (1.5, 2.0))),
        (Backward, 2.0, 4.0, ((2.0, 2.5),)),
        (Update, 4.0, 5.0, ()),
        (Forward, 5.5, 7.0, ((6.0, 6.5),)),
        (Backward, 7.0, 8.0, ()),
        (Update, 8.0, 9.0, ()),
    ]
