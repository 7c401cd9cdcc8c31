"""Find the class that a config names: a backbone, a margin, a data set, or a user's own class.

A config has `name: Glyphs`, and the registry returns the class. Built-in classes are imported on first use,
so that reading a config does not import Paddle. Your own class is `name: "my_package.nets:MyNet"`.
"""

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

from plsc.errors import UserError, escape


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ", did you mean 'x'?" with the known name nearest to `word`, or "" if none is similar."""
    near = nearest(word, known)
    return f", did you mean '{near}'?" if near else ""


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to `word`, or "" if none is similar."""
    lower = {name.lower(): name for name in known}
    word = str(word).lower()
    if re.fullmatch(r"i?r\d+", word):  # r50, as arcface_torch calls IResNet50
        word = f"iresnet{word.strip('ir')}"
    near = difflib.get_close_matches(word, lower, n=1, cutoff=cutoff)
    # `dist_arcface` is what other programs call ArcFace. `arcface` keeps all classes on each rank.
    return lower.get(f"dist_{near[0]}", lower[near[0]]) if near else ""


class Registry(NamedTuple):
    """Classes of one kind, by name."""

    kind: str  # the word for the kind in messages, such as "backbone"
    builtin: dict[str, str]  # name -> "module:Class"
    bases: tuple[str, ...]  # "module:Class" each. A user's own class derives from one

    def get(self, name: str) -> type:
        """Return the class of a built-in name, or of an import path "package.module:Class".

        Raises UserError for an unknown name, a module that cannot be imported, something that is not a class,
        or a class of another kind.
        """
        module_name, _, class_name = self.builtin.get(name, name).rpartition(":")
        if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
            raise UserError(
                f"unknown {self.kind} '{escape(name)}'{did_you_mean(name, self.builtin)} "
                f"(one of {', '.join(self.builtin)}, or your own as package.module:Class)"
            )
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # of any kind in the user's module
            place = "put it beside the config, or its folder on PYTHONPATH, or install it"
            remedy = place if isinstance(error, ImportError) else "--debug shows where"
            if module_name.endswith(".py"):
                remedy = f"write {module_name.removesuffix('.py')}:{class_name}, without .py"
            said = f"{type(error).__name__}: {error}; {remedy}"
            raise UserError(f"{self.kind} '{name}': cannot import {module_name}: {said}") from error
        cls = getattr(module, class_name, None)
        if inspect.isroutine(cls):
            raise UserError(
                f"{self.kind} '{name}': {class_name} is a function; name a class, which may call it "
                "(docs/extend.md)"
            )
        if not isinstance(cls, type):
            hint = did_you_mean(class_name, (n for n, v in vars(module).items() if isinstance(v, type)))
            raise UserError(f"{self.kind} '{name}': module {module_name} has no class {class_name}{hint}")
        # A config may name any class that can be imported, and calling it may have effects. A base class
        # whose module is not imported yet has no subclasses, so this code need not import Paddle.
        bases = [base.split(":") for base in self.bases if name not in self.builtin]
        known = (getattr(sys.modules.get(module), base, ()) for module, base in bases)
        if bases and not issubclass(cls, tuple(known)):
            wanted = " or ".join(map(".".join, bases))
            raise UserError(f"{self.kind} '{name}': {class_name} must derive from {wanted}")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise UserError(f"{self.kind} '{name}': {class_name} must define {', '.join(missing)}")
        return cls


def is_import_path(name: str) -> bool:
    """Return whether a name is "package.module:Class"."""
    return ":" in name
