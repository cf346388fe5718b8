"""What differs between pages in the repository and on the site: where links lead."""

from __future__ import annotations

import re

_PAGE = re.compile(r"`docs/([\w-]+)\.md`")
_OUTSIDE = re.compile(r"\[`?([^]`]+)`?\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Link pages that are named by their path; name what lies outside of the site by its own."""
    linked = _PAGE.sub(r"[\1](\1.md)", markdown)
    return _OUTSIDE.sub(r"\1 (`\2` in the repository)", linked)
