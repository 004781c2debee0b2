"""Translation of enums by name: `EndReason.STOP` is `END_REASON_STOP` on the wire."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from services.common.errors import InvalidInputError

if TYPE_CHECKING:
    from enum import StrEnum

_Enum = TypeVar("_Enum", bound="StrEnum")


@cache
def _prefix(kind: type[StrEnum]) -> str:
    """`FailureReason` -> `FAILURE_REASON_`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper() + "_"


def enum_to_proto(wire: Any, value: StrEnum) -> Any:  # noqa: ANN401 - generated enum wrappers share no public type
    """Return the wire value of a domain enum member.

    Args:
        wire: the generated enum, e.g. `trajectory_pb2.EndReason`.
        value: the domain member.
    """
    return wire.Value(_prefix(type(value)) + value.name)


def enum_from_proto(kind: type[_Enum], wire: Any, value: int) -> _Enum:  # noqa: ANN401 - see above
    """Return the domain member of a wire value.

    Raises:
        InvalidInputError: for the zero value and for numbers of a newer contract.
    """
    member: _Enum | None = _members(kind, wire).get(value)
    if member is None:
        names = ", ".join(member.name for member in kind)
        raise InvalidInputError(f"{kind.__name__} has no value {value}; known are {names}")
    return member


@cache
def _members(kind: type[_Enum], wire: Any) -> dict[int, _Enum]:  # noqa: ANN401 - see above
    """Return the domain members by their wire values."""
    return {wire.Value(_prefix(kind) + member.name): member for member in kind}
