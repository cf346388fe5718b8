"""The benchmark of captures, at its smallest."""

import io

import pytest
from rich.console import Console

from benchmarks.speed.capture import KINDS, Row, growth, table_of, time_capture


@pytest.mark.parametrize(("kind", "operators"), list(zip(KINDS, (20, 22, 20), strict=True)))
def test_models_have_the_size_that_is_asked_for(kind: str, operators: int) -> None:
    row = time_capture(kind, 20)
    assert row.operators == operators
    assert row.nodes > row.operators
    assert 0 < row.export_seconds < row.seconds


def test_growth_is_the_exponent_since_the_next_smaller_model_of_the_kind() -> None:
    rows = [
        Row("chain", 100, 200, 1.0, 0.5, 10**6),
        Row("chain", 300, 600, 9.0, 5.0, 3 * 10**6),
        Row("shared", 100, 200, 1.0, 0.5, 10**6),
    ]
    assert growth(rows) == {rows[1]: pytest.approx(2.0)}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table_of(rows))
    assert "2.00" in console.export_text()
