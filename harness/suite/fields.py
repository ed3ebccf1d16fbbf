"""What the parts of a suite are made of: names, bounds of numbers, and the strict base class of every mapping."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

# So that names can be parts of paths
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
LONGEST_NAME, LONGEST_TASK = 64, 128
TASK_PATTERN = rf"(lm_eval:)?{NAME_PATTERN}(:[A-Za-z0-9_.,=+-]+)?"
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=f"^{NAME_PATTERN}$")]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Style = Literal["raw", "zero-shot", "few-shot"]
Keep = Literal["last", "best", "none"]
Samples = Annotated[int, Field(ge=0, le=1024)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class SuiteModel(BaseModel):
    """A part of a suite: unknown keys, other types and infinite numbers are refused, and nothing changes afterwards.

    younger: fields that came after cells had been stored, each with the value at which all is as it was before. At that value a
    field is left out of what is written, and so of what a cell's key hashes: stored cells keep their keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    younger: ClassVar[dict[str, Any]] = {}

    @model_serializer(mode="wrap")
    def _leave_out_younger(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = plain(self)
        at_default = [key for key, value in self.younger.items() if key in fields and fields[key] == value]
        for key in at_default:
            del fields[key]
        return fields


def all_distinct(what: str, exempt: type | None = None) -> AfterValidator:
    """Make a validator that refuses a list in which two items are equal or bear one name.

    what: what an item is, for the error. exempt: items of this type are not compared."""

    def check(items: list[Any]) -> list[Any]:
        """Refuse a list with an item that was there before. Raises ValueError."""
        seen: list[Any] = []
        for item in items:
            if exempt is not None and isinstance(item, exempt):
                continue
            name = getattr(item, "name", item)
            if name in seen:
                raise ValueError(f"the {what} {name!r} occurs twice")
            seen.append(name)
        return items

    return AfterValidator(check)


def not_of_a_file(*taken: str) -> AfterValidator:
    """Make a validator that refuses names, in lower case, which the harness gives to files of its own."""

    def check(name: str) -> str:
        if name.lower() in taken:
            raise ValueError(f"{name!r} is the name of a file or folder of the harness; choose another")
        return name

    return AfterValidator(check)
