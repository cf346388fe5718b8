"""Where the time of learning went: the parts of a sentence, and of a run that was resumed."""

from drlpp.envs.measuring.search_file import Confidence, SearchFile
from drlpp.schedule.method import Method

SURE = Confidence(
    configuration="3-1", method=Method(in_flight_per_link=1), share=0.88, expected_gain=0.004
)
PART = SearchFile(
    placements=8, seconds=20.0, cluster_seconds=12.0, deploying_seconds=3.0, confidence=SURE
)


def test_parts_of_a_run_add_up_and_the_last_word_counts() -> None:
    interrupted = SearchFile(
        placements=2, seconds=5.0, cluster_seconds=4.0, deploying_seconds=0.5, confidence=None
    )
    assert PART.after(interrupted) == SearchFile(
        placements=10, seconds=25.0, cluster_seconds=16.0, deploying_seconds=3.5, confidence=SURE
    )
    assert interrupted.after(PART).confidence is None, "it goes on, and was not asked again"
