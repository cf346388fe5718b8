"""Reading and writing the files that a user keeps: versioned, validated, atomic.

Every kind of file is a :class:`Document`: a frozen pydantic model whose first two fields say what
the file is and which version of its format it has. JSON for what programs write, YAML for what
people write by hand (``cluster.yaml``); both are read by the file's ending.

Whatever the kind, its text can be shown: a control character in a name could move the cursor of the
terminal that it is printed on, and one that turns the direction of writing could show another name.
Such content is refused where a file is read, and is never printed.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from drlpp.errors import InvalidFile, is_unseen, visible
from drlpp.io.files import write_atomically

_YAML = {".yaml", ".yml"}


class Record(BaseModel):
    """A frozen fact that is stored inside a document; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StrictRecord(Record):
    """A record that people write: numbers are numbers."""

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse truth values where a number belongs: YAML's ``yes`` is true, Python's 1."""
        kind = str(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and "bool" not in kind and ("int" in kind or "float" in kind):
            raise ValueError(f"expected a number, found {str(value).lower()}")
        return value


class Document(Record):
    """A file of its own. Subclasses set ``kind`` and ``current_version``."""

    kind: ClassVar[str]
    current_version: ClassVar[int] = 1


DocumentType = TypeVar("DocumentType", bound=Document)


def content_of(document: Document) -> dict[str, Any]:
    """Return the fields of a document's file."""
    return {
        "kind": document.kind,
        "version": document.current_version,
        **document.model_dump(mode="json", exclude_none=True),
    }


def write_document(path: str | Path, document: Document) -> Path:
    """Write ``document`` to ``path`` so that a reader sees the old file or the new one, whole.

    Raises:
        InvalidFile: it cannot be written, or holds what could not be read again.
        StorageFailure: the disk is full or broken.
    """
    content = content_of(document)
    path = Path(path)
    if problem := problem_of(content):
        raise InvalidFile(f"{path}: cannot be written: {problem}")
    if path.suffix in _YAML:
        text = yaml.safe_dump(content, sort_keys=False)
    else:
        text = json.dumps(content, indent=1) + "\n"
    return write_atomically(path, text.encode())


def read_document(path: str | Path, expected: type[DocumentType]) -> DocumentType:
    """Read and validate a document of the kind ``expected``.

    Raises:
        InvalidFile: naming the file, the field, and what was expected there.
    """
    return document_of(read_mapping(Path(path)), str(path), expected)


def document_of(content: dict[str, Any], path: str, expected: type[DocumentType]) -> DocumentType:
    """Return the document that the fields of a file are, or of a part of it, ``path``.

    Raises:
        InvalidFile: naming the file, the field, and what was expected there.
    """
    kind, version = content.pop("kind", None), content.pop("version", None)
    newest = expected.current_version
    if kind != expected.kind:
        what = f"is a {kind} file" if kind else "has no field 'kind'"
        raise InvalidFile(f"{path}: expected a {expected.kind} file, but it {what}")
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise InvalidFile(
            f"{path}: field 'version' is {version!r}, expected 1 to {newest}; a file of a newer "
            "drlpp needs that to be read"
        )
    unknown = next((field for field in content if field not in expected.model_fields), None)
    if unknown is not None:
        raise InvalidFile(
            f"{path}: field '{unknown}' is unknown; a {kind} file has the fields "
            f"{', '.join(expected.model_fields)}"
        )
    try:
        return expected.model_validate(content)
    except ValidationError as error:
        raise InvalidFile(f"{path}: {first_problem(error)}") from None


def read_any_document(path: str | Path) -> Document:
    """Read a document of whatever kind the file says it is."""
    kinds = {document.kind: document for document in Document.__subclasses__()}
    kind = read_mapping(Path(path)).get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(sorted(kinds))
        raise InvalidFile(f"{path}: field 'kind' is {kind!r}, expected one of: {known}")
    return read_document(path, kinds[kind])


class _PlainLoader(yaml.SafeLoader):
    """A loader that reads no aliases: a few of them can stand for more than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return a value of the file; refuse an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases are not read", problem_mark=mark)
        return super().compose_node(parent, index)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InvalidFile: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InvalidFile(
            f"{path}: cannot be read as text; if it holds weights, safetensors or torch.load reads "
            "them"
        ) from None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error})") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the fields of a JSON or YAML file, whatever they are.

    Raises:
        InvalidFile: it cannot be read, is not well-formed, or holds what no file may.
    """
    text = read_text(path)
    if not text.strip():
        raise InvalidFile(f"{path}: is empty")
    return parse_mapping(text, str(path), is_yaml=path.suffix in _YAML)


def parse_mapping(text: str, where: str, *, is_yaml: bool = False) -> dict[str, Any]:
    """Return the fields that a text holds, in JSON or YAML.

    Args:
        text: of a file, or of one line of it.
        where: the place of the text, for error messages.
        is_yaml: the text is YAML instead of JSON.

    Raises:
        InvalidFile: it is not well-formed, or holds what no file may.
    """
    try:
        content = yaml.load(text, _PlainLoader) if is_yaml else json.loads(text)
        problem = problem_of(content)
    # ValueError also of numbers and dates that Python cannot hold, RecursionError of deep nesting.
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidFile(f"{where}: truncated or not well-formed: {reason}") from None
    if not isinstance(content, dict):
        raise InvalidFile(f"{where}: expected fields with names, found {type(content).__name__}")
    if problem is not None:
        raise InvalidFile(f"{where}: {problem}")
    return content


def problem_of_text(text: str) -> str | None:
    """Return what is wrong with a text in a file, or None if nothing is."""
    found = None if text.isprintable() else next(filter(is_unseen, text), None)
    if found is None:
        return None
    kind = "control" if unicodedata.category(found) == "Cc" else "invisible"
    # Quoted as Python does it, which shows none of these.
    return f"has the {kind} character {found!r} in {text[:60]!r}; remove it"


def problem_of(content: Any, field: str = "") -> str | None:
    """Return what is wrong in the content of a JSON or YAML file, None if nothing is.

    The answer names the field, unless the content is a single value.
    """
    match content:
        case dict():
            pairs = [((name, field), (one, f"{field}{name}.")) for name, one in content.items()]
            parts = [part for pair in pairs for part in pair]
        case list() | tuple() | set():
            parts = [(one, f"{field}{index}.") for index, one in enumerate(content)]
        case str() if problem := problem_of_text(content):
            return f"field '{visible(field.removesuffix('.'))}': {problem}" if field else problem
        case _:
            return None
    return next(filter(None, (problem_of(*part) for part in parts)), None)


def first_problem(error: ValidationError) -> str:
    """Return what pydantic found wrong first, in one line that names the field if it is one."""
    # A field that is missing is often one that was misspelt.
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    found = problem["input"]
    match problem["type"]:
        case "extra_forbidden":
            message = "is unknown here"
        case "missing":
            message = "is missing"
        case _ if message.startswith("Input should be"):
            message = f"{message}, found {found!r:.60}"
    return f"field '{field}': {message}" if field else message
