"""All config keys with their meaning: as a markdown table (python -m configs.reference), or with a config's values."""

import yaml

from configs import Config
from model.position import POSITIONS
from settings import FrozenConfig


def reference() -> str:
    """One row a key: its dotted name, its default, and what it means; then the options of the schemes, and whose."""
    whose = {}
    for scheme, position in POSITIONS.items():
        for row in _rows(position.Options, "model.position."):
            whose.setdefault(row, []).append(scheme)
    rows = [f"| `{key}` | `{default}` | {meaning} |" for key, default, meaning in _rows(Config, "")]
    for (key, default, meaning), schemes in whose.items():
        named = "all" if len(schemes) == len(POSITIONS) else ", ".join(schemes)
        rows.append(f"| `{key}` ({named}) | `{default}` | {meaning} |")
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def commented(config: FrozenConfig, indent: str = "") -> str:
    """The config as YAML, which loads as the same one; beside each key its meaning."""
    lines = []
    for key, field in type(config).model_fields.items():
        value, note = getattr(config, key), f"  # {' '.join(field.description.split())}" if field.description else ""
        if isinstance(value, FrozenConfig):
            lines += [f"{indent}{key}:{note}", commented(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_yaml(config.model_dump(mode='json')[key])}{note}")
    return "\n".join(lines)


def _rows(config: type[FrozenConfig], prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for key, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, FrozenConfig) and key != "position":
            rows += _rows(field.annotation, f"{prefix}{key}.")
        elif key != "scheme":
            default = "required" if field.is_required() else _yaml(field.default)
            meaning = " ".join(field.description.split()).replace("|", r"\|")
            rows.append((prefix + key, default, meaning))
    return rows


def _yaml(value) -> str:
    look = {"default_flow_style": True, "allow_unicode": True, "width": float("inf"), "sort_keys": False}
    return yaml.safe_dump(list(value) if isinstance(value, tuple) else value, **look).split("\n")[0]


if __name__ == "__main__":
    print(reference())
