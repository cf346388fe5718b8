"""What ``from drlpp import ...`` gives."""

from pathlib import Path

import drlpp.runtime


def test_no_name_is_hidden_by_a_file_of_the_same_name() -> None:
    """Importing ``drlpp.name`` makes the module an attribute, and the lazy import is not asked."""
    files = {path.stem for path in Path(drlpp.__file__).parent.iterdir()}
    assert not files & set(drlpp.__all__)


def test_every_public_name_is_there() -> None:
    for name in drlpp.__all__:
        assert getattr(drlpp, name) is not None
