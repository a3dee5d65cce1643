"""Act when NeMo RL's controller is imported, whoever imports it, and whatever import hooks there are.

Stands alone and imports nothing but `sys`, not even `__future__`: the start-up file loads it in every Python
there is, where our package may be missing.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

CONTROLLER_MODULE = "nemo_rl.algorithms.single_controller"


class ControllerHook:
    """A finder in front of all others, which finds nothing itself.

    For the controller it asks those behind it, as Python would, and has the loader that they give call `act`
    when the module is complete. A finder that comes in front of it later (typeguard's, jaxtyping's) can
    import the controller past it; so at every other import it goes to the front again, and acts then on
    a controller that it has not seen.

    Args:
        act: Called with the complete module, at every execution of it, in the importing thread. What it
            raises breaks that import.
    """

    def __init__(self, act: "Callable[[ModuleType], None]") -> None:
        self._act = act
        self._seen: ModuleType | None = None

    def enter(self) -> None:
        """Wait, in front of `sys.meta_path`, for the next execution of the controller."""
        self._seen = self.missed()
        sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Leave `sys.meta_path`; nothing will be acted on any more."""
        while self in sys.meta_path:
            sys.meta_path.remove(self)

    def missed(self) -> "ModuleType | None":
        """The controller, complete and not acted on; None where there is none."""
        module = sys.modules.get(CONTROLLER_MODULE)
        # One without a spec was not imported: a test's stand-in.
        spec = getattr(module, "__spec__", None)
        if spec is None or getattr(spec, "_initializing", False) or module is self._seen:
            return None
        return module

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Take part in an import, as `importlib.abc.MetaPathFinder` says."""
        finders = list(sys.meta_path)
        if self not in finders:
            return None
        at = finders.index(self)
        if name != CONTROLLER_MODULE:
            # Those in front have been asked already, so the import that is going on skips none.
            if at:
                sys.meta_path[:] = [self, *finders[:at], *finders[at + 1 :]]
            if self.missed() is not None:
                self._complete(sys.modules[CONTROLLER_MODULE])
            return None
        behind = [finder.find_spec for finder in finders[at + 1 :] if hasattr(finder, "find_spec")]
        specs = (find(name, path, target) for find in behind)
        spec: ModuleSpec | None = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            self._attach(spec.loader)
        return spec

    def _attach(self, loader: "Any") -> None:
        """Shadow a loader's `exec_module` on the instance, so that its type stays what others expect."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: "ModuleType") -> None:
            try:
                execute(module)
            except BaseException as error:
                # The traceback is as without us.
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            # A loader may be shared: a zip's is. And somebody may have left.
            if module.__name__ == CONTROLLER_MODULE and self in sys.meta_path:
                self._complete(module)

        try:  # noqa: SIM105 - no contextlib here
            loader.exec_module = exec_module
        except AttributeError:
            # A loader without attributes of its own: the next import catches up.
            pass

    def _complete(self, module: "ModuleType") -> None:
        self._seen = module
        self._act(module)
