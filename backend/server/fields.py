"""Single fields of a request: present, of the right type, within bounds, or a refusal that names them."""

import math
import reprlib
from typing import NoReturn

from k3agent.backend.chat.template import Json
from k3agent.backend.errors import BadRequestError

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxdict = _short.maxlist = 3
_short.maxlevel = 2


def shown(value: object) -> str:
    """A value for an error text: short, whatever the client has sent."""
    return _short.repr(value)


def refuse(reason: str) -> NoReturn:
    raise BadRequestError(reason)


def boolean(body: Json, name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(f"{name} must be a boolean, not {shown(value)}")
    return value


def integer(body: Json, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        refuse(f"{name} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def number(body: Json, name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    # an integer may be too large for a float, so the bounds come first
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        refuse(f"{name} must be a number from {low:g} to {high:g}, not {shown(value)}")
    return float(value)
