"""The base of all config classes, and how they report a mistake."""

from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Size = Annotated[int, Field(gt=0, lt=2**31)]  # of a tensor: two of them multiplied are still a number to torch


class FrozenConfig(BaseModel):
    """Immutable settings; rejects unknown keys, coerces numbers, and takes docstrings as descriptions of fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, values):
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                near = get_close_matches(str(key), cls.model_fields, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(cls.model_fields)}"
                raise ValueError(f"unknown key {key!r:.60}, {hint}")
        return values


def one_line(error: ValidationError) -> str:
    """The first problem of a config as `dotted.key: value: what is allowed`."""
    keys = []
    while True:
        problem = error.errors()[0]
        keys += map(str, problem["loc"])
        error = problem.get("ctx", {}).get("error")
        if not isinstance(error, ValidationError):  # otherwise the problem is in a nested mapping
            break
    value = problem["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f"{value!r:.80}: "
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{'.'.join(keys)}: {shown}{message}" if keys else message
