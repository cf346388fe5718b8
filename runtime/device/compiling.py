"""Whether torch can compile here."""


def why_not_compiled() -> str | None:
    return None
