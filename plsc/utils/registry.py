"""Find the class of a name in a config: backbones, margins and data sets, a user's own too.

A config says `name: Glyphs`; the registry returns the class. Built-in classes are imported on first use, so
that reading a config does not import Paddle. Your own class is `name: "my_package.nets:MyNet"`.
"""

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping

from plsc.errors import UserError, shown


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ", did you mean 'x'?" with the known name nearest to `word`, or "" if none is similar."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), lower, n=1, cutoff=0.6)
    return f", did you mean '{lower[near[0]]}'?" if near else ""


class Registry:
    """The classes of one kind by name.

    Args:
        kind: the word for them in messages, such as "backbone".
        builtin: name -> "module:Class".
        bases: "module:Class" each; a class that is named by its import path must derive from one of them.
            This is checked before the class is called: a config may name any class that can be imported, and
            calling it may have effects.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str], bases: tuple[str, ...]):
        self.kind = kind
        self.builtin = dict(builtin)
        self.bases = bases

    def get(self, name: str) -> type:
        """Return the class of a built-in name, or of an import path "package.module:Class".

        Raises UserError for an unknown name, a module that cannot be imported, something that is not a class,
        or a class of another kind.
        """
        module_name, _, class_name = self.builtin.get(name, name).rpartition(":")
        if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
            raise UserError(
                f"unknown {self.kind} '{shown(name)}'{did_you_mean(name, self.builtin)} "
                f"(one of {', '.join(self.builtin)}, or your own as package.module:Class)"
            )
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            remedy = "" if name in self.builtin else "; put it beside the config, or its folder on PYTHONPATH"
            raise UserError(f"{self.kind} '{name}': cannot import {module_name}: {error}{remedy}") from error
        cls = getattr(module, class_name, None)
        if not isinstance(cls, type):
            hint = did_you_mean(class_name, (n for n, v in vars(module).items() if isinstance(v, type)))
            raise UserError(f"{self.kind} '{name}': module {module_name} has no class {class_name}{hint}")
        if name not in self.builtin:
            self._check_base(name, cls)
        return cls

    def _check_base(self, name: str, cls: type) -> None:
        """Raise UserError for a class that derives from none of `bases`, or lacks their abstract methods."""
        paths = [base.partition(":") for base in self.bases]
        # A base whose module is not imported yet has no subclasses, so Paddle need not be imported here.
        known = [getattr(sys.modules.get(module), base, None) for module, _, base in paths]
        if not issubclass(cls, tuple(base for base in known if base is not None)):
            wanted = " or ".join(f"{module}.{base}" for module, _, base in paths)
            raise UserError(f"{self.kind} '{name}': {cls.__name__} must derive from {wanted}")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise UserError(f"{self.kind} '{name}': {cls.__name__} must define {', '.join(missing)}")


def is_import_path(name: str) -> bool:
    """Return whether a name is "package.module:Class"."""
    return ":" in name
