"""What is wrong with a group of fields, in the words of who writes them and not in pydantic's."""

from __future__ import annotations

import difflib
import re
from typing import Any, get_args

import pydantic


def mistakes_of(error: pydantic.ValidationError, root: type[pydantic.BaseModel]) -> list[str]:
    """Return a sentence for each mistake that pydantic found in a model of class `root`."""
    # A list of which no item is right is also told as one without items.
    found = [each for each in error.errors() if not (each["type"] == "too_short" and each["input"])]
    return [_sentence(each, root) for each in found]


def _sentence(error: Any, root: type[pydantic.BaseModel]) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "spec"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown field{_meant(error['loc'], root)}"
    if error["type"] == "missing":
        return f"{where}: is missing"
    said = error["msg"].removeprefix("Value error, ")
    for pydantics, ours in _IN_OUR_WORDS.items():
        said = re.sub(pydantics, ours, said)
    got = "" if error["type"] == "value_error" else f", got {error['input']!r}"
    return f"{where}: {said[:1].lower()}{said[1:]}{got}"


_IN_OUR_WORDS = {
    r"^(Tuple|List) should have at least 1 item after validation, not 0": "needs at least one name",
    r"^String should have at least 1 character": "should not be empty",
    r"^Input should be (a valid|an instance of|a)\b": "should be a",
    r"^Input should be\b": "should be",
    r"\ba (tuple|list)\b": "a list",
    r"\ba dictionary( or (object to extract fields from|instance of \w+))?": "a mapping of field: value",
    r"\ba string\b": "text",
    r"\ba integer\b": "a whole number",
    r"\ba boolean\b": "true or false",
}
"""How pydantic (2.11) says it, and what a spec's author knows it as."""


def _group_in(annotation: Any) -> Any:
    """Return the group of fields that a field is, may be, or has a list of; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _group_in(inner)) is not None), None)


def _meant(location: tuple[Any, ...], root: type[pydantic.BaseModel]) -> str:
    model: Any = root
    for part in location[:-1]:
        # A number is the place in a list, of which all items are alike.
        if not isinstance(part, int):
            field = getattr(model, "model_fields", {}).get(str(part))
            model = _group_in(field.annotation) if field is not None else root
    fields = getattr(model, "model_fields", root.model_fields)
    allowed = sorted(field.alias or name for name, field in fields.items())
    close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{hint} (allowed: {', '.join(allowed)})"
