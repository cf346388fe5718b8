"""Whose code runs: which packages a user trusts, and what a file may have us import.

A placement names its model and its optimizer, and importing these runs code. What is not drlpp's
own is imported only if the user trusts its top-level package: by ``--trust`` and ``trust=``, by
having named it himself, or because he did so for a run in the same folder before
(:mod:`drlpp.io.trust_memory`). Reading a file imports nothing, so everything that it names is
settled together, before the first import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from drlpp.errors import InvalidInput
from drlpp.io.documents import Record
from drlpp.io.importing import ImportedByName

Stored = TypeVar("Stored", bound=Record)


def trusted_packages(trust: str | Iterable[str]) -> frozenset[str]:
    """Return top-level packages from what a user gives: one or several.

    Raises:
        InvalidInput: something given is no name of a package.
    """
    packages = [trust] if isinstance(trust, str) else list(trust)
    for package in packages:
        if not isinstance(package, str) or not package.isidentifier():
            raise InvalidInput(
                f"trust is {package!r}; expected the name of a package, such as 'mymodels' for "
                "'mymodels.vision:resnet'"
            )
    return frozenset(packages)


def trusting(record: Stored, packages: Iterable[str]) -> Stored:
    """Return a copy in which everything named from these packages may be imported."""
    known = frozenset(packages)
    copy = record.model_copy(deep=True)
    for named in named_in(copy):
        named._allowed |= named.package in known
    return copy


def require_trust(where: object, *records: Record) -> None:
    """Check that everything that is named may be imported.

    Args:
        where: the place of the names, for the error message.
        records: the content of a file, or what takes its place.

    Raises:
        InvalidInput: naming every package that is missing, and what of it is wanted.
    """
    refused = [named for record in records for named in named_in(record) if named.refused]
    if not refused:
        return
    wanted = ", ".join(dict.fromkeys(f"{named.what} {named.name}" for named in refused))
    packages = list(dict.fromkeys(str(named.package) for named in refused))
    options = " ".join(f"--trust {package}" for package in packages)
    raise InvalidInput(
        f"{where} names {wanted}, which would have to be imported, and importing runs the code of "
        f"{' and '.join(packages)} with what the file says. If you trust them and the file: "
        f"{options} (in Python trust={packages}); `drlpp show` reads it without running anything"
    )


def named_in(record: object) -> Iterator[ImportedByName]:
    """Yield everything in a record, however deep, whose name might be imported."""
    match record:
        case Record():
            if isinstance(record, ImportedByName):
                yield record
            for field in type(record).model_fields:
                yield from named_in(getattr(record, field))
        case tuple() | list():
            for value in record:
                yield from named_in(value)
        case dict():
            for value in record.values():
                yield from named_in(value)
