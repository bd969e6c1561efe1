"""Schema-guided repairs of arguments (L18).

Models make the same few mistakes over and over: a list sent as text, a number in quotes, null for "not given". Each is mended here if, and only if, the
value does not fit its schema as it is; the caller commits the result only if all of it then fits. A value that fits is never touched, with one exception that
the schema cannot express: a markdown link in a path field (`[a.txt](a.txt)`), which is text, but no path that anybody meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trouper.core.messages import Json
from trouper.tools.arguments import DEPTH_MAX, DIGITS_MAX, NODES_MAX, is_large, parse_json
from trouper.tools.errors import InvalidArguments
from trouper.tools.validation import Compiled, compiled

#: Names that models use whatever the schema says -> the parameters that they mean, best first.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "filePath": ("file_path", "path"),
    "file_path": ("path",),
    "oldString": ("old_string", "old_text", "old"),
    "old_string": ("old_text", "old"),
    "newString": ("new_string", "new_text", "new"),
    "new_string": ("new_text", "new"),
    "replaceAll": ("replace_all",),
    "cmd": ("command",),
}
#: Parts of arguments that are tried with parts of the schema, all in all. Where alternatives hold alternatives, as in a tree of two kinds of nodes, each level of
#: the arguments doubles the number of ways to read them.
_TRIES_MAX = 4 * NODES_MAX
#: Notes of one repair; a list of a thousand quoted numbers needs no thousand notes.
NOTES_MAX = 20
_INTEGER = re.compile(rf"-?[0-9]{{1,{DIGITS_MAX}}}\Z")
_NUMBER = re.compile(r"-?\d{1,64}(\.\d{1,64})?([eE][+-]?\d{1,3})?\Z")
_LINK = re.compile(r"\[([^\[\]\n]{1,4096})\]\(([^()\n]{1,4096})\)\Z")
_PATH_NAME = re.compile(r"(?:.*_)?(?:path|paths|file|files|filename|dir|directory|folder)\Z|.*(?:Path|File|Dir)\Z")


def is_path_field(name: str, schema: object) -> bool:
    """Whether a field holds a path: by its format, or by its name if it may be text."""
    if not isinstance(schema, Mapping):
        return False
    if schema.get("format") == "path" or any(is_path_field("", branch) for branch in schema.get("anyOf", ())):
        return True
    return _PATH_NAME.match(name) is not None and _may_be_text(schema)


def has_path_field(schema: Json) -> bool:
    """Whether any part of a schema describes a path."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and any(
            is_path_field(name, part) or _lists_paths(name, part) for name, part in properties.items()
        ):
            return True
        return any(has_path_field(part) for part in schema.values())
    return isinstance(schema, list) and any(has_path_field(part) for part in schema)


def _lists_paths(name: str, schema: object) -> bool:
    if not isinstance(schema, Mapping):
        return False
    return is_path_field(name, schema.get("items")) or any(
        _lists_paths(name, branch) for branch in schema.get("anyOf", ())
    )


def _may_be_text(schema: Mapping[str, Json]) -> bool:
    return "string" in _kinds(schema) or any(
        isinstance(each, Mapping) and _may_be_text(each) for each in schema.get("anyOf", ())
    )


def unlinked(value: str) -> str | None:
    """The path inside a markdown link whose text equals its target; `None` if `value` is anything else."""
    found = _LINK.match(value)
    return found[1] if found is not None and found[1] == found[2] else None


class SchemaRepair:
    """The repairs for one schema. Validators of its parts are compiled when first needed, and kept."""

    def __init__(self, schema: Mapping[str, Json]) -> None:
        self._root = schema
        self._shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        # Keyed by identity: the parts live as long as the root that holds them.
        self._validators: dict[int, Compiled | None] = {}
        #: Of this repair.
        self._tries = 0

    def mend(self, arguments: Json) -> tuple[Json, tuple[str, ...]]:
        """The arguments as they were probably meant, and what was changed. It is the caller who checks whether they now fit."""
        notes: list[str] = []
        if is_large(arguments):
            return arguments, ()
        self._tries = 0
        mended = self._mend(arguments, self._root, "", notes, 0)
        if len(notes) > NOTES_MAX:
            notes[NOTES_MAX:] = [f"and {len(notes) - NOTES_MAX} repairs more"]
        return mended, tuple(notes)

    def unlink(self, arguments: dict[str, Json]) -> tuple[dict[str, Json], tuple[str, ...]]:
        """The arguments with paths in place of markdown links; the very same object if there are none."""
        notes: list[str] = []
        self._tries = 0
        found = self._unlink(arguments, self._root, "", "", notes, 0)
        return (found, tuple(notes)) if notes else (arguments, ())

    def _unlink(self, value: Json, schema: object, name: str, path: str, notes: list[str], depth: int) -> Json:
        if isinstance(value, str):
            if value[:1] == "[" and is_path_field(name, schema) and (target := unlinked(value)) is not None:
                notes.append(f"took the path out of a link in {_named(path)}")
                return target
            return value
        self._tries += 1
        if (
            depth > DEPTH_MAX
            or self._tries > _TRIES_MAX
            or not isinstance(schema, Mapping)
            or not isinstance(value, (dict, list))
        ):
            return value
        schema = self._resolved(schema)
        for branch in schema.get("anyOf", ()):
            value = self._unlink(value, branch, name, path, notes, depth + 1)
        if isinstance(value, list):
            items = schema.get("items")
            return [
                self._unlink(each, items, name, f"{path}[{index}]", notes, depth + 1)
                for index, each in enumerate(value)
            ]
        properties = schema.get("properties", {})
        return {
            key: self._unlink(each, properties.get(key), key, f"{path}.{key}" if path else key, notes, depth + 1)
            for key, each in value.items()
        }

    def misfits(self, arguments: dict[str, Json]) -> list[str]:
        """The arguments that do not fit, by name alone: to find what is wrong inside may take for ever, see `errors_in`."""
        properties = self._root.get("properties", {})
        return [
            name for name, each in arguments.items() if name in properties and not self._fits(each, properties[name])
        ]

    def _fits(self, value: Json, schema: Json) -> bool:
        if not isinstance(schema, Mapping):
            return bool(schema)
        key = id(schema)
        if key not in self._validators:
            try:
                self._validators[key] = compiled({**self._shared, **schema})
            except Exception:  # a reference to somewhere else in the root: only the whole can be checked
                self._validators[key] = None
        validator = self._validators[key]
        return validator is not None and validator.is_valid(value)

    def _resolved(self, schema: Mapping[str, Json]) -> Mapping[str, Json]:
        for _ in range(8):  # a chain of references, which may be a circle
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            found: Json = self._root
            for step in reference[2:].split("/"):
                found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
            if not isinstance(found, Mapping):
                break
            schema = found
        return schema

    def _mend(self, value: Json, schema: Json, path: str, notes: list[str], depth: int) -> Json:
        self._tries += 1
        if (
            depth > DEPTH_MAX
            or self._tries > _TRIES_MAX
            or not isinstance(schema, Mapping)
            or self._fits(value, schema)
        ):
            return value
        schema = self._resolved(schema)
        for keyword in ("anyOf", "oneOf"):
            for branch in schema.get(keyword, ()):
                tried: list[str] = []
                candidate = self._mend(value, branch, path, tried, depth + 1)
                if self._fits(candidate, branch):
                    notes.extend(tried)
                    return candidate
        kinds = _kinds(schema)
        if isinstance(value, str):
            return self._mend_text(value, kinds, schema, path, notes, depth)
        if isinstance(value, dict) and "object" in kinds:
            return self._mend_object(value, schema, path, notes, depth)
        if value == {} and "array" in kinds:
            notes.append(f"took {{}} for an empty list in {_named(path)}")
            return []
        if isinstance(value, list) and "array" in kinds:
            return self._mend_items(value, schema, path, notes, depth)
        return value

    def _mend_text(
        self, value: str, kinds: frozenset[str], schema: Mapping[str, Json], path: str, notes: list[str], depth: int
    ) -> Json:
        text = value.strip()
        if "boolean" in kinds and text.lower() in ("true", "false"):
            notes.append(f"took text for a boolean in {_named(path)}")
            return text.lower() == "true"
        if kinds & {"integer", "number"}:
            number: int | float | None = None
            if _INTEGER.match(text):
                number = int(text)
            elif "number" in kinds and _NUMBER.match(text):
                number = float(text)
            if number is not None:
                notes.append(f"took text for a number in {_named(path)}")
                return number
        if text[:1] in ("[", "{") and kinds & {"array", "object"}:
            try:
                parsed = parse_json(text)
            except (ValueError, InvalidArguments):
                parsed = None
            if (isinstance(parsed, list) and "array" in kinds) or (isinstance(parsed, dict) and "object" in kinds):
                notes.append(f"parsed the text in {_named(path)} as JSON")
                if is_large(parsed):
                    return parsed
                return self._mend(parsed, schema, path, notes, depth + 1)
        # A list that could not be parsed is no text for a list: the tool would take it for the name of something.
        if "array" in kinds and not _is_broken_list(text) and self._fits([value], schema):
            notes.append(f"put the one text in {_named(path)} into a list")
            return [value]
        return value

    def _mend_object(
        self, value: dict[str, Json], schema: Mapping[str, Json], path: str, notes: list[str], depth: int
    ) -> Json:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        rest = schema.get("additionalProperties")
        mended: dict[str, Json] = {}
        for key, each in value.items():
            name = key
            if key not in properties:
                meant = next(
                    (
                        alias
                        for alias in ALIASES.get(key, ())
                        if alias in properties and alias not in value and alias not in mended
                    ),
                    None,
                )
                if meant is not None:
                    notes.append(f"took {key!r} for {meant!r}")
                    name = meant
            part = properties.get(name, rest)
            inner = f"{path}.{name}" if path else name
            if each is None and name in properties and name not in required and not self._fits(None, part):
                notes.append(f"dropped null for the optional {_named(inner)}")
                continue
            mended[name] = self._mend(each, part, inner, notes, depth + 1)
        return mended

    def _mend_items(
        self, value: list[Json], schema: Mapping[str, Json], path: str, notes: list[str], depth: int
    ) -> Json:
        prefix = schema.get("prefixItems", ())
        items = schema.get("items")
        return [
            self._mend(each, prefix[index] if index < len(prefix) else items, f"{path}[{index}]", notes, depth + 1)
            for index, each in enumerate(value)
        ]


def _is_broken_list(text: str) -> bool:
    """Whether it was written for a list, and not in JSON: `['a', 'b']`, `["a", "b",]`, `[a, b]`."""
    if not text.startswith("["):
        return False
    return text[1:].lstrip().startswith(("'", '"')) or (text.endswith("]") and "," in text)


def _kinds(schema: Mapping[str, Json]) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, (list, tuple)):
        return frozenset(kind)
    return frozenset({"object"} if "properties" in schema else {"array"} if "items" in schema else ())


def _named(path: str) -> str:
    return repr(path if len(path) <= 80 else path[:80] + "...") if path else "the arguments"
