"""Read a NeMo RL run's YAML as NeMo RL does, and remember where every value came from.

Parents named by `defaults` come first, in order and each relative to its own file; then the file itself; then
the overrides of the command line. OmegaConf merges and interpolates, Hydra's own parser reads the overrides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from nemo_rl_deadline_fix.errors import InvalidInputError

DEFAULT = "default"
COMMAND_LINE = "command line"

Keys = tuple[str, ...]
Origins = dict[Keys, str]

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
        origins: Where each value that is no mapping was set last.
    """

    path: Path
    tree: DictConfig
    origins: Origins

    def read(self, key: str, default: Any = None, *, shallow: bool = False) -> Setting:
        """Resolve one key, and nothing but what it needs.

        Args:
            key: The dotted key.
            default: What it is worth when it, or a block around it, is not there.
            shallow: Leave what is inside of a mapping or list unresolved.

        Raises:
            InvalidInputError: The key is set, but to something that cannot be resolved here.
        """
        node: Any = self.tree
        path: Keys = ()
        for part in key.split("."):
            # keys(), not `in`: the latter takes an interpolation that fails for a key that is not there.
            if not isinstance(node, DictConfig) or part not in node.keys():  # noqa: SIM118
                return Setting(key, default, DEFAULT)
            path += (part,)
            try:
                with _resolvers():
                    node = node[part]
            except Exception as error:  # a resolver may raise anything
                raise InvalidInputError(
                    f"cannot read {'.'.join(path)} ({self._origin(path)})",
                    found=_first_line(error),
                    advice="set what it refers to, or give the key itself on the command line",
                ) from error
        try:
            with _resolvers():
                value = (
                    OmegaConf.to_container(node, resolve=not shallow) if OmegaConf.is_config(node) else node
                )
        except Exception as error:
            raise InvalidInputError(
                f"cannot read {key} ({self._origin(path)})", found=_first_line(error)
            ) from error
        return Setting(key, value, self._origin(path))

    def named(self, name: str) -> list[tuple[Keys, Setting]]:
        """Every key of this name that holds a value, wherever it is, unresolved, with its path."""
        raw = OmegaConf.to_container(self.tree, resolve=False)
        return [
            (path, Setting(".".join(path), value, self._origin(path)))
            for path, value in _leaves(raw, ())
            # A dotted name in the YAML is one key to OmegaConf, not a path.
            if path[-1].rpartition(".")[2] == name and value is not None and value != "???"
        ]

    def _origin(self, path: Keys) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return DEFAULT


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a file with all that it inherits, and put the overrides on it.

    Raises:
        InvalidInputError: A file, or an override, cannot be used.
    """
    with _resolvers():
        tree, origins = _with_parents(path, (), named_by="")
        # As NeMo RL does: an override without `+` has to hit a key that is there.
        OmegaConf.set_struct(tree, True)
        parser = OverridesParser.create()
        for override in overrides:
            _apply(override, parser, tree, origins)
    return RunConfig(path, tree, origins)


def _apply(override: str, parser: OverridesParser, tree: DictConfig, origins: Origins) -> None:
    try:
        (parsed,) = parser.parse_overrides([override])
        ConfigLoaderImpl._apply_overrides_to_config([parsed], tree)
        value = parsed.value()
    except Exception as error:  # Hydra lets some errors of the parser through as they are
        cause = f" ({_first_line(error.__cause__)})" if error.__cause__ is not None else ""
        raise InvalidInputError(
            f"cannot use the override {override!r}",
            found=str(error) + cause,
            supported="key=value, +key=value, ++key=value, ~key",
        ) from error
    keys = tuple(parsed.key_or_group.split("."))
    if not parsed.is_delete():
        _overlay(origins, dict.fromkeys(_paths(value, keys), COMMAND_LINE))


def _with_parents(path: Path, below: tuple[Path, ...], *, named_by: str) -> tuple[DictConfig, Origins]:
    # Read first: a path that is none at all is told there.
    own, own_origins = _one_file(path, named_by)
    # A parent of two children is fine; a file that is its own ancestor is not.
    chain = (*below, path)
    if os.path.realpath(path) in {os.path.realpath(child) for child in below}:
        raise InvalidInputError(
            f"{below[0]} inherits from itself",
            found=" -> ".join(str(file) for file in chain),
            advice="take one of these defaults out",
        )
    tree, origins = OmegaConf.create({}), Origins()
    try:
        for parent in _parents(own, path):
            above, above_origins = _with_parents(path.parent / parent, chain, named_by=str(path))
            tree = _merge(tree, origins, above, above_origins)
        return _merge(tree, origins, own, own_origins), origins
    except OmegaConfBaseException as error:
        raise InvalidInputError(f"cannot merge {path} with its parents", found=_first_line(error)) from error


def _parents(own: DictConfig, path: Path) -> list[str]:
    if "defaults" not in own.keys():  # noqa: SIM118  see RunConfig.read
        return []
    defaults = own.pop("defaults")
    parents = list(defaults) if isinstance(defaults, ListConfig) else [defaults]
    if not all(isinstance(parent, str) and parent for parent in parents):
        raise InvalidInputError(
            f"cannot follow the defaults of {path}",
            found=str(defaults),
            supported="a path or a list of paths, relative to this file's folder",
        )
    return parents


def _merge(base: DictConfig, base_origins: Origins, child: DictConfig, child_origins: Origins) -> DictConfig:
    """Merge `child` over `base`; `base_origins` is updated in place."""
    for key in list(child.keys()):
        node = child._get_node(key)
        # A block of the top level may ask to replace its parents' block instead of being merged into it.
        if isinstance(node, DictConfig) and not node._is_interpolation() and "_override_" in node:
            if not node.pop("_override_"):
                continue
            base.pop(key, None)
            for path in [path for path in base_origins if path[0] == str(key)]:
                del base_origins[path]
    # A `???` asks somebody else for a value: merged over one, it leaves that as it is.
    said = {
        path: it for path, it in child_origins.items() if path not in base_origins or not _asks(child, path)
    }
    _overlay(base_origins, said)
    merged = OmegaConf.merge(base, child)
    assert isinstance(merged, DictConfig)
    return merged


def _one_file(path: Path, named_by: str) -> tuple[DictConfig, Origins]:
    why = f"the config {path}" + (f", which {named_by} names in its defaults" if named_by else "")
    try:
        text = path.read_bytes().decode("utf-8")
        loader = get_yaml_loader()(text)
        root = loader.get_single_node()
        if root is None and named_by:
            return OmegaConf.create({}), {}
        if not isinstance(root, yaml.MappingNode):
            kind = "nothing" if root is None else f"a {root.id} at the top"
            raise InvalidInputError(f"cannot use {why}", found=kind, supported="a YAML mapping")
        origins: Origins = {}
        _lines(root, (), path, origins)
        tree = OmegaConf.create(loader.construct_document(root))
    except FileNotFoundError:
        raise InvalidInputError(f"cannot find {why}", advice="check the path") from None
    except OSError as error:
        raise InvalidInputError(f"cannot read {why}", found=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"cannot read {why}", found=f"not UTF-8 at byte {error.start}", supported="a YAML file in UTF-8"
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidInputError(f"cannot read {why}", found=f"line {line}: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidInputError(f"cannot read {why}", found=f"{where}{error.problem}") from error
    except RecursionError as error:
        raise InvalidInputError(f"cannot read {why}", found="YAML nested without end") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise InvalidInputError(f"cannot read {why}", found=_first_line(error)) from error
    assert isinstance(tree, DictConfig)
    return tree, origins


def _lines(mapping: yaml.MappingNode, above: Keys, file: Path, origins: Origins) -> None:
    for key, value in mapping.value:
        if key.tag == "tag:yaml.org,2002:merge":
            inherited = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for block in inherited:
                merged: Origins = {}
                if isinstance(block, yaml.MappingNode):
                    _lines(block, above, file, merged)
                for path, origin in merged.items():
                    origins.setdefault(path, origin)
        elif isinstance(key, yaml.ScalarNode):
            path = (*above, key.value)
            if isinstance(value, yaml.MappingNode):
                _lines(value, path, file, origins)
            else:
                origins[path] = f"{file}:{key.start_mark.line + 1}"


def _leaves(value: Any, path: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, str(index)))
    elif path:
        yield path, value


def _paths(value: Any, path: Keys) -> Iterator[Keys]:
    # A list is replaced as a whole, so it is one thing that somebody set.
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, str(key)))
    else:
        yield path


def _asks(tree: DictConfig, path: Keys) -> bool:
    node: Any = tree
    for part in path:
        node = node._get_node(part) if isinstance(node, DictConfig) else None
    return node is not None and bool(node._is_missing())


def _overlay(base: Origins, child: Origins) -> None:
    # Only what is no mapping has an origin; set over a mapping, it takes the place of all that was in it.
    for path in [path for path in base if any(path[:length] in child for length in range(1, len(path)))]:
        del base[path]
    base.update(child)


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
