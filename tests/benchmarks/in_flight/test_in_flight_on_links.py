"""In-flight depths on emulated links: what follows from measurements, and a run at its smallest."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.emulated_cluster.names import name_in
from benchmarks.in_flight.__main__ import app
from benchmarks.in_flight.links import BEGIN, END, cluster_of, rates_of, row_of
from benchmarks.in_flight.program import METHOD, DepthSamples, even_placement, orders
from benchmarks.in_flight.report import Row, as_plain, table_of
from benchmarks.models import reference
from benchmarks.report import markdown
from drlpp.capturing.capture import capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.simulator import Depth, simulate
from tests.support.programs.emulated_clusters import names_left, needs_kernel, network_lines

DEPTHS = tuple(
    Depth(per_link, (4 + 3 * per_link, 1), seconds, 1e6)
    for per_link, seconds in enumerate((6.0, 3.0, 2.0, 2.0, 1.999))
)
ROW = Row(
    bits_per_second=3e8,
    message_bytes=3_000_000,
    message_seconds=0.0812,
    turns=((0.8, 0.4, 0.2, 0.1), (1.0, 0.4, 0.4, 0.1), (3.0, 1.0, 1.0, 1.0)),
    simulated=DEPTHS,
)


def test_speed_ups_are_medians_of_ratios_within_a_turn() -> None:
    assert ROW.noam_seconds == 1.0
    assert ROW.speed_ups == pytest.approx((2.5, 3.0, 8.0))
    assert ROW.spread == pytest.approx(1 - 3 / 8)
    assert ROW.simulated_speed_ups == (2.0, 3.0, 3.0)
    assert ROW.automatic.per_link == 2


factors = st.floats(0.1, 10)
turns_with_drift = st.tuples(factors, st.tuples(factors, factors, factors, factors))


@given(st.lists(turns_with_drift, min_size=1, max_size=5))
def test_a_machine_that_drifts_from_turn_to_turn_changes_nothing(
    drawn: list[tuple[float, tuple[float, ...]]],
) -> None:
    turns = tuple(turn for _, turn in drawn)
    slower = tuple(tuple(factor * value for value in turn) for factor, turn in drawn)
    quiet, drifting = (Row(1e8, 1, 1.0, each, DEPTHS) for each in (turns, slower))
    assert drifting.speed_ups == pytest.approx(quiet.speed_ups)
    assert drifting.spread == pytest.approx(quiet.spread, abs=1e-9)


def test_depths_take_turns_there_and_back() -> None:
    assert list(orders(3, 2)) == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def test_a_row_as_text_and_as_json() -> None:
    assert dict(table_of([ROW]).loc[0]) == {
        "links": "300 Mbit/s",
        "one message (asked)": "81.20 ms (80.00 ms)",
        "NOAM (simulated)": "1.00 s (6.00 s)",
        "1 per link (simulated)": "2.50× (2.00×)",
        "2 per link (simulated)": "3.00× (3.00×)",
        "3 per link (simulated)": "8.00× (3.00×)",
        "turns within": "62%",
        "auto": "2 (10-1)",
    }
    lines = markdown(table_of([ROW])).splitlines()
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1
    (plain,) = json.loads(json.dumps(as_plain([ROW])))
    assert plain["turns"] == [list(turn) for turn in ROW.turns]
    assert plain["speed_ups"] == pytest.approx([2.5, 3.0, 8.0])
    assert plain["automatic_per_link"] == 2


def test_the_simulator_plays_what_is_measured() -> None:
    """Four equal stages on four hosts, with links of the speed that was asked for."""
    model = reference("convolutions", {"batch_size": 2, "channels": 4, "side": 4})
    profile = estimate_profile(capture(model).graph)
    asked = cluster_of(1e8, 0.2)
    samples = DepthSamples(
        profile=profile, message_bytes=100, message_seconds=0.1, turns=((1.0, 1.0, 1.0, 1.0),)
    )
    row = row_of(asked, samples)
    assert row.bits_per_second == 1e8
    assert row.asked_message_seconds == 8e-6
    assert row.simulated[0].in_flight == (4, 3, 2, 1)
    assert row.simulated[1].in_flight == (7, 5, 3, 1)
    placement = even_placement(profile)
    assert [asked.host_of[stage.accelerators[0]] for stage in placement.stages] == [0, 1, 2, 3]
    for depth in row.simulated[:3]:
        method = METHOD.model_copy(update={"in_flight_per_link": depth.per_link})
        played = simulate(Workload.of(profile, METHOD), asked, placement, method, 120)
        assert depth.seconds_per_minibatch == played.seconds_per_minibatch


def test_rates_are_megabits() -> None:
    assert rates_of("100,1000,2.5e3") == [1e8, 1e9, 2.5e9]


@pytest.mark.parametrize("text", ["", "fast", "100,", "100,0", "-1", "nan", "inf"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected numbers of Mbit/s"):
        rates_of(text)


@pytest.mark.slow
@needs_kernel
@pytest.mark.timeout(600)
def test_depths_are_measured_on_a_link_and_nothing_is_left(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    arguments = ["--short", "--rates", "1000", "--json", "--document", str(document)]
    result = CliRunner().invoke(app, ["links", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    (turn,) = row["turns"]
    assert len(turn) == 4
    assert min(turn) > 0
    assert row["bits_per_second"] == 1e9
    assert row["message_bytes"] == 4 * 4 * 8 * 8 * 4
    assert row["message_seconds"] > 0
    assert "network namespaces host-0" in result.stderr
    before, *lines, after = document.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert any(line.startswith("| 1 Gbit/s |") for line in lines)
    assert found["conditions"] in lines
    assert names_left(os.getpid()) == []


@pytest.mark.slow
@needs_kernel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_leaves_nothing(number: signal.Signals) -> None:
    program = [sys.executable, "-m", "benchmarks.in_flight", "links", "--short"]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as running:
        try:
            end = time.monotonic() + 120
            while not any(is_in_a_cluster_of(running.pid, line) for line in network_lines()):
                assert time.monotonic() < end, "no cluster was built"
                time.sleep(0.1)
            time.sleep(8)
            running.send_signal(number)
            assert running.wait(60) == 128 + number
        finally:
            running.kill()
    assert names_left(running.pid) == []


def is_in_a_cluster_of(process: int, line: str) -> bool:
    return (name_in(line) or "").startswith(f"drlpp-{process}-")
