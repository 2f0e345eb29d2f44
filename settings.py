"""The base of all config classes, and how they report a mistake."""

from difflib import get_close_matches
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

Size = Annotated[int, Field(gt=0, lt=2**31)]  # of a tensor: two of them multiplied are still a number to torch
Single = Annotated[float, Field(gt=-1e38, lt=1e38)]  # a number that float32 has
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]  # of a folder
Positive = Annotated[float, Field(gt=1e-37, lt=1e37)]  # one that it has with all its digits, and its reciprocal too


class FrozenConfig(BaseModel):
    """Immutable settings; rejects unknown keys, coerces numbers, and takes docstrings as descriptions of fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, values):
        if not isinstance(values, dict | cls):
            keys = [key for key in cls.model_fields if cls._accepts({key: values})]
            raise ValueError("expected a mapping" + (f", as in {{{keys[0]}: {values}}}" if keys else ""))
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(f"unknown key {key!r:.60}, {cls._hint(str(key))}")
        return values

    @model_validator(mode="wrap")  # a validator of all fields would change how they are written, too
    @classmethod
    def _no_truth_value_is_a_number(cls, values, handler):
        taken = handler(values)
        for key, value in values.items() if isinstance(values, dict) else ():
            if _is_counted(value, getattr(taken, key, None)):
                wrong = PydanticCustomError("number", "expected a number, not a truth value")
                raise ValidationError.from_exception_data(
                    cls.__name__, [{"type": wrong, "loc": (key,), "input": value}]
                )
        return taken

    @classmethod
    def _accepts(cls, values: dict) -> bool:
        try:
            return bool(cls.model_validate(values))
        except ValidationError:
            return False

    @classmethod
    def _hint(cls, key: str) -> str:
        """The key that was meant: of this name further in, or spelled like it, or it has its initials or a word of it."""
        names = list(cls.model_fields)
        every = [(dotted, dotted.split(".")[-1]) for dotted in [*names, *cls._inner_keys()]]
        meant = [dotted for dotted, name in every if name == key] + get_close_matches(key, names, 1)
        meant += [dotted for dotted, name in every if get_close_matches(key, [name], 1, cutoff=0.8)]
        meant += [dotted for dotted, name in every if key in ("".join(w[0] for w in name.split("_")), *name.split("_"))]
        return f"did you mean {meant[0]!r}?" if meant else f"known keys: {', '.join(names)}"

    @classmethod
    def _inner_keys(cls) -> list[str]:
        """The dotted names of all keys of the mappings in this one."""
        found = []
        for name, field in cls.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, FrozenConfig):
                found += [f"{name}.{key}" for key in [*field.annotation.model_fields, *field.annotation._inner_keys()]]
        return found


def named_by(key: str, kinds) -> BeforeValidator:
    """For a union of configs, each with a Literal `key`, whose value in a mapping says which of them it is.

    pydantic's discriminators do this too, but put the value into the path of an error, as if it were a key.
    """
    known = {get_args(kind.model_fields[key].annotation)[0]: kind for kind in get_args(kinds)}

    def validate(value):
        if isinstance(value, get_args(kinds)):
            return value
        name = value.get(key) if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in known:
            got = f", got {name!r:.60}" if name is not None else ""
            raise ValueError(f"expected a mapping with {key}: {' | '.join(known)}{got}")
        return known[name].model_validate(value)

    return BeforeValidator(validate)


def _is_counted(given, taken) -> bool:
    """Whether pydantic took a truth value, by itself or within, as the number 0 or 1."""
    if isinstance(given, dict) and isinstance(taken, dict):
        given, taken = [*given.values()], [*taken.values()]
    if isinstance(given, list | tuple) and isinstance(taken, list | tuple):
        return any(map(_is_counted, given, taken))
    return isinstance(given, bool) and isinstance(taken, int | float) and not isinstance(taken, bool)


def one_line(error: ValidationError) -> str:
    """The first problem of a config as `dotted.key: value: what is allowed`."""
    keys = []
    while True:
        problem = error.errors()[0]
        keys += [str(key) for key in problem["loc"] if key != "constrained-int"]  # a branch of a union, and no key
        error = problem.get("ctx", {}).get("error")
        if not isinstance(error, ValidationError):  # otherwise the problem is in a nested mapping
            break
    value = problem["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f"{value!r:.80}: "
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{'.'.join(keys)}: {shown}{message}" if keys else message
