"""Read a NeMo RL run's YAML as NeMo RL does, and remember where every value came from.

Parents named by `defaults` come first, in order and each relative to its own file; then the file itself; then
the overrides of the command line. OmegaConf merges and interpolates, Hydra's own parser reads the overrides.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from nemo_rl_deadline_fix.errors import InvalidInputError

DEFAULT = "default"
COMMAND_LINE = "command line"

Keys = tuple[str, ...]
Origins = dict[Keys, str]

_ABSENT = object()
# The nodes of a file know their lines; libyaml makes them faster, where PyYAML has it.
_LINES_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OVERRIDE_FORMS = "key=value for a key that is there, ++key=value to add one, ~key to take one out"
_REPLACE = "_override_"
"""In a block of the top level: replace the block of the files before instead of being merged into it."""
_MISSING = "???"
"""OmegaConf's value for "somebody else sets this"."""
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}
"""What NeMo RL registers before it reads a config."""


@dataclass(frozen=True)
class Setting:
    """One value of the run.

    Attributes:
        key: The dotted key.
        value: The value, interpolations resolved.
        origin: `file:line`, "command line" or "default".
    """

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class RunConfig:
    """The merged config of one run.

    Attributes:
        path: The file that was named.
        tree: The merged values, interpolations not yet resolved.
        origins: Where each value that is not a mapping was set last.
    """

    path: Path
    tree: DictConfig
    origins: Origins

    def read(self, key: str, default: Any = None) -> Setting:
        """Resolve one key, and nothing but what it needs.

        Args:
            key: The dotted key.
            default: Its value where it, or a block around it, is not there.

        Returns:
            The setting, or, under its own key, the outermost block around it that is not a mapping.

        Raises:
            InvalidInputError: The key is set, but to something that cannot be resolved here.
        """
        parts, path = tuple(key.split(".")), Keys()
        value: Any = self.tree
        try:
            with _resolvers():
                while isinstance(value, DictConfig) and path != parts:
                    path = parts[: len(path) + 1]
                    value = OmegaConf.select(
                        self.tree, ".".join(path), default=_ABSENT, throw_on_missing=True
                    )
                if OmegaConf.is_config(value):
                    value = OmegaConf.to_container(value, resolve=True)
        except Exception as error:  # a resolver may raise anything
            origin = self._origin(path)
            where = self.path if origin == DEFAULT else origin
            raise InvalidInputError(
                f"cannot read {'.'.join(path)} ({where})",
                found=_first_line(error),
                advice=f"set what it refers to, or give the key itself: ++{key}=VALUE",
            ) from error
        if value is _ABSENT:
            return Setting(key, default, DEFAULT)
        return Setting(".".join(path), value, self._origin(path))

    def has(self, key: str) -> bool:
        """Whether a key is there, whatever its value."""
        there = OmegaConf.select(self.tree, key, default=_ABSENT, throw_on_resolution_failure=False)
        return there is not _ABSENT

    def named(self, name: str) -> list[tuple[Keys, Setting]]:
        """Every key of this name that holds a value, wherever it is, unresolved, with its path."""
        return [
            (path, Setting(".".join(path), value, self._origin(path)))
            for path, value in _leaves(OmegaConf.to_container(self.tree, resolve=False))
            # A dotted name in the YAML is one key to OmegaConf, not a path.
            if path[-1].rpartition(".")[2] == name and value is not None and value != _MISSING
        ]

    def _origin(self, path: Keys) -> str:
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.origins[keys] for keys in above if keys in self.origins), DEFAULT)


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a file with all that it inherits, and put the overrides on it.

    Raises:
        InvalidInputError: A file, or an override, cannot be used.
    """
    with _resolvers():
        tree, origins = _with_parents(path, ())
        # As NeMo RL does: an override without `+` has to hit a key that is there.
        OmegaConf.set_struct(tree, True)
        for override in overrides:
            _override(override, tree, origins)
    return RunConfig(path, tree, origins)


def _with_parents(path: Path, below: tuple[Path, ...]) -> tuple[DictConfig, Origins]:
    chain = (*below, path)
    # Read first, so a missing path is reported before a cycle.
    own, own_origins = _one_file(path, below)
    # A parent of two children is fine; a file that is its own ancestor is not.
    if os.path.realpath(path) in map(os.path.realpath, below):
        raise InvalidInputError(
            f"{below[0]} inherits from itself",
            found=" -> ".join(str(file) for file in chain),
            advice="take one of these defaults out",
        )
    if (parents := _parents(own, path)) is None:
        # Not merged, so its markers hold for what stands before it in the defaults that name it.
        return own, own_origins
    tree, origins = OmegaConf.create({}), Origins()
    for parent in parents:
        above, above_origins = _with_parents(path.parent / parent, chain)
        tree = _merge(tree, origins, above, above_origins, path)
    return _merge(tree, origins, own, own_origins, path), origins


def _parents(tree: DictConfig, file: Path) -> list[str] | None:
    """The paths that a file inherits from, in order, taken out of its tree; None where it says nothing."""
    # keys(), not `in`: the latter takes an interpolation that fails for a key that is not there.
    if "defaults" not in tree.keys() or OmegaConf.is_missing(tree, "defaults"):  # noqa: SIM118
        return None
    what = f"cannot follow the defaults of {file}"
    try:
        defaults = tree.pop("defaults")
        if OmegaConf.is_config(defaults):
            return [str(parent) for parent in defaults]
    except Exception as error:
        raise InvalidInputError(what, found=_first_line(error)) from error
    if not isinstance(defaults, str):
        raise InvalidInputError(
            what, found=str(defaults), supported="a path or a list of paths, relative to the file's folder"
        )
    return [defaults]


def _merge(
    base: DictConfig, base_origins: Origins, child: DictConfig, child_origins: Origins, file: Path
) -> DictConfig:
    """Merge `child` over `base`; `base_origins` is updated in place."""
    try:
        for key in list(child.keys()):
            if OmegaConf.is_missing(child, key):
                continue
            # As NeMo RL: any value that is not falsy counts, so the word 'false' does, and so does `${flag}`.
            if isinstance(child[key], DictConfig) and child[key].get(_REPLACE, False):
                child[key].pop(_REPLACE)
                base.pop(key, None)
                for path in [path for path in base_origins if path[0] == str(key)]:
                    del base_origins[path]
        merged = OmegaConf.merge(base, child)
    except Exception as error:
        raise InvalidInputError(f"cannot merge {file} with its parents", found=_first_line(error)) from error
    _overlay(base_origins, child_origins)
    assert isinstance(merged, DictConfig)
    return merged


def _one_file(path: Path, below: tuple[Path, ...]) -> tuple[DictConfig, Origins]:
    why = f"the config {path}" + (f", which {below[-1]} names in its defaults" if below else "")
    try:
        text = path.read_bytes().decode("utf-8")
        tree = OmegaConf.load(io.StringIO(text))
        root = yaml.compose(text, Loader=_LINES_LOADER)
        if root is None:
            return OmegaConf.create({}), {}
        if not isinstance(root, yaml.MappingNode):
            raise InvalidInputError(
                f"cannot use {why}", found=f"a {root.id} at the top", supported="a YAML mapping"
            )
        places = dict(_leaves(_places(root, path)))
    except FileNotFoundError:
        raise InvalidInputError(f"cannot find {why}", advice="check the path") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise InvalidInputError(f"cannot read {why}", found=_problem(error)) from error
    assert isinstance(tree, DictConfig)
    return tree, {keys: place for keys, place in places.items() if place}


def _problem(error: Exception) -> str:
    """What is wrong with a file, and where in it."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "YAML nested without end"
    return (error.strerror if isinstance(error, OSError) else None) or _first_line(error)


def _places(mapping: yaml.MappingNode, file: Path) -> dict[str, Any]:
    """The `file:line` of each value, in nested mappings; "" for a value that is left to somebody else."""
    own: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for key, value in mapping.value:
        if key.tag == "tag:yaml.org,2002:merge":
            for block in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                shared = {**_places(block, file), **shared}
        elif isinstance(value, yaml.MappingNode):
            own[str(key.value)] = _places(value, file)
        else:
            own[str(key.value)] = "" if value.value == _MISSING else f"{file}:{key.start_mark.line + 1}"
    return {**shared, **own}


def _leaves(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """What is not a mapping, with its path. A list is replaced as a whole, so it is one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _overlay(base: Origins, child: Origins) -> None:
    # Set over a mapping, a value takes the place of all that was in it.
    for path in [path for path in base if any(path[:length] in child for length in range(1, len(path)))]:
        del base[path]
    base.update(child)


def _override(text: str, tree: DictConfig, origins: Origins) -> None:
    """Put one override of the command line on the tree."""
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
    except ImportError as error:
        raise InvalidInputError(
            "cannot read overrides with the installed hydra-core",
            found=str(error),
            supported="hydra-core 1.3",
            advice="write the values into a YAML file that names the run's file in its defaults",
        ) from error
    try:
        (parsed,) = OverridesParser.create().parse_overrides([text])
        key, value = parsed.key_or_group, parsed.value()
        keys = tuple(key.split("."))
        if parsed.package is not None:
            raise ValueError("a config group; NeMo RL has none")
        if parsed.is_delete():
            _delete(tree, keys, value)
        else:
            _set(tree, key, value, adds=parsed.is_add(), force=parsed.is_force_add())
            _overlay(origins, {path: COMMAND_LINE for path, _ in _leaves(value, keys)})
    except Exception as error:  # Hydra lets some errors of its parser through as they are
        cause = f" ({_first_line(error.__cause__)})" if error.__cause__ is not None else ""
        raise InvalidInputError(
            f"cannot use the override {text!r}", found=_first_line(error) + cause, supported=_OVERRIDE_FORMS
        ) from error


def _set(tree: DictConfig, key: str, value: Any, *, adds: bool, force: bool) -> None:
    taken = adds and OmegaConf.select(tree, key, throw_on_missing=False) is not None
    if taken and not isinstance(value, dict | list):
        raise ValueError(f"{key} is there already, which ++{key} replaces")
    OmegaConf.update(tree, key, value, force_add=adds or force)


def _delete(tree: DictConfig, keys: Keys, value: Any) -> None:
    there = OmegaConf.select(tree, ".".join(keys), throw_on_missing=False)
    if there is None or value not in (None, there):
        raise ValueError(f"the value there is {there}" if there is not None else "there is no such key")
    block = OmegaConf.select(tree, ".".join(keys[:-1])) if keys[:-1] else tree
    with open_dict(tree):
        del block[keys[-1]]


@contextmanager
def _resolvers() -> Iterator[None]:
    """NeMo RL's resolvers, registered for as long as we read: OmegaConf keeps them per process."""
    ours = [name for name in _RESOLVERS if not OmegaConf.has_resolver(name)]
    for name in ours:
        OmegaConf.register_new_resolver(name, _RESOLVERS[name])
    try:
        yield
    finally:
        for name in ours:
            OmegaConf.clear_resolver(name)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
