"""JSON to dataclasses.

A field that the client does not know is ignored and one that the daemon leaves out gets its default, so that daemon and
client may differ in version.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$")


def decode(kind: type[T], value: Any) -> T:
    """Reads a dataclass. Raises ValueError if a required field is missing or has another type."""
    return cast("T", _decoder(kind)(value))


def timestamp(text: str) -> datetime:
    """Reads RFC 3339; Python before 3.11 knows neither `Z` nor nanoseconds."""
    found = _TIME.match(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time")
    base, fraction, zone = found.groups()
    microseconds = ((fraction or "") + "000000")[:6]
    whole = datetime.fromisoformat(f"{base}.{microseconds}{'+00:00' if zone == 'Z' else zone}")
    return whole.astimezone(timezone.utc)


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin = get_origin(kind)
    if kind is datetime:
        return lambda value: timestamp(_checked(str, value))
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(cast("type[Any]", kind))
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in get_args(kind) if part is not type(None))
        item = _decoder(inner)
        return lambda value: None if value is None else item(value)
    if origin in (list, tuple):
        item = _decoder(get_args(kind)[0])
        make = cast("Callable[[Any], Any]", origin)
        return lambda value: make(item(part) for part in _checked(list, value))
    if origin is dict or kind is Any:
        return lambda value: value
    return lambda value: _checked(kind, value)


def _dataclass_decoder(kind: type[Any]) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    fields = [(field.name, field.name.rstrip("_"), _decoder(hints[field.name])) for field in dataclasses.fields(kind)]

    def read(value: Any) -> Any:
        given = _checked(dict, value)
        try:
            return kind(**{name: item(given[key]) for name, key, item in fields if key in given})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error

    return read


def _checked(kind: type[Any], value: Any) -> Any:
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value
