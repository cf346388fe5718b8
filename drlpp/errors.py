"""What can go wrong, in two families.

What the user gave is a :class:`InvalidInput`, a ``ValueError`` that names the value and the remedy;
the command line prints it as one line and exits with code 2. What happened while running is a
:class:`RunFailure`; an agent's run turns it into a failed measurement and continues.
"""

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_LINE = 800

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories: control, format, half a character, separators of lines and paragraphs."""


def is_unseen(character: str) -> bool:
    """Return whether a terminal acts on a character: moves its cursor, turns the direction."""
    return unicodedata.category(character) in _UNSEEN


def visible(text: str) -> str:
    """Return ``text`` with escapes such as ``\\x1b`` for what a terminal would act on."""
    return "".join(
        character.encode("unicode_escape").decode() if is_unseen(character) else character
        for character in text
    )


class DRLPPError(Exception):
    """Root of every error that this project raises on purpose.

    Its message is one line that any terminal may show, whatever is quoted in it: names of files,
    their content, what a user's code says.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(visible(" ".join(message.splitlines())))


class InvalidInput(DRLPPError, ValueError):
    """Something that the user gave and that cannot be used as it is, described in one line.

    What is quoted from a file may be of any length, and is shortened.
    """

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST_LINE:
            message = f"{message[: _LONGEST_LINE // 2]} … {message[-_LONGEST_LINE // 2 :]}"
        super().__init__(message)


class ModelNote(UserWarning):
    """Something that its user should know of a model or a plan; programs print it as a note."""


class InvalidModel(InvalidInput):
    """A model that cannot be imported, built, captured or cut."""


class InvalidPlacement(InvalidInput):
    """A placement that no pipeline can run, or that belongs to another model or cluster."""


class InvalidCluster(InvalidInput):
    """A cluster description that contradicts itself, the placement or the machine."""


class NothingFits(InvalidInput):
    """A memory limit that no placement satisfies."""


class InvalidFile(InvalidInput):
    """A file that is missing, truncated, of another kind or of a newer version."""


class RunFailure(DRLPPError, RuntimeError):
    """Something that happened on the workers while a placement ran."""

    kind = "failed"


class OutOfMemory(RunFailure):
    """A worker could not allocate memory."""

    kind = "out of memory"


class WorkerLost(RunFailure):
    """A worker process ended without being asked to; ``workers`` has its number, if it is known."""

    kind = "worker lost"

    def __init__(self, message: str, workers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.workers = frozenset(workers)


class HostLost(RunFailure):
    """A host of the cluster cannot be reached any more; ``workers`` has those that it keeps.

    Or some of its GPUs are gone, and ``workers`` has those that computed there. Without it nothing
    runs, until its workers are given up, as an elastic training does.
    """

    kind = "host lost"

    def __init__(self, message: str, workers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.workers = frozenset(workers)


class CannotStart(HostLost):
    """A worker ends whenever it is started, whatever it is for; ``workers`` has its number.

    Its host is there, but what is measured or trained has to do without the worker.
    """

    kind = "worker cannot be started"


class TrialTimeout(RunFailure):
    """A trial did not finish in the time allowed for it."""

    kind = "timeout"


class DataError(RunFailure):
    """The source of the training data raised, ended too early, or gave what is no number."""

    kind = "error in the data"


class ModelError(RunFailure):
    """The model, its loss or its optimizer raised on a worker."""

    kind = "error in the model"


class NotFinite(RunFailure):
    """The loss or the weights of a training became infinite or not a number.

    ``minibatch`` is that of the loss, counted from 0 since training began; None if it is unknown.
    """

    kind = "not finite"

    def __init__(self, message: str, minibatch: int | None = None) -> None:
        super().__init__(message)
        self.minibatch = minibatch


class StorageFailure(RunFailure):
    """A disk is full or cannot be written."""

    kind = "storage"


_LIKENESS = 0.85
"""Of two names, from 0 to 1: a letter too many or too few, in long ones another or two in the other
order. In short ones such are other names: vgg16 and vgg19, gpt2 and gpt3."""
_LONGEST_NAME = 200
"""Comparing takes the product of both lengths."""


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the question that an error message ends with, None if no name is like it."""
    if len(name) > _LONGEST_NAME:
        return None
    near = get_close_matches(name, list(known), n=1, cutoff=_LIKENESS)
    return f"did you mean {near[0]!r}?" if near else None
