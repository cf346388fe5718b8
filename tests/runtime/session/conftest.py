"""A busy machine makes a pipeline look unsteady; then it is measured again."""

import pytest


@pytest.fixture
def steady_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every window for steady."""
    monkeypatch.setattr("drlpp.runtime.session.session.is_steady", lambda *_: True)
