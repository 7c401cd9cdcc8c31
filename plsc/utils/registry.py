"""Find the class of a name in a config: backbones, margins and data sets, a user's own too.

A config says `name: Glyphs`; the registry returns the class. Built-in classes are imported on first use, so
that reading a config does not import Paddle. Your own class needs no registration: write
`name: "my_package.nets:MyNet"`. Registering gives it a short name:

    from plsc.utils.registry import BACKBONES

    @BACKBONES.register
    class MyNet(paddle.nn.Layer): ...
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from plsc.errors import UserError, shown

Class = TypeVar("Class", bound=type)


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

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        bases: tuple[str, ...],
    ):
        self.kind = kind
        self.bases = bases
        self.builtin = dict(builtin)
        self._classes: dict[str, type] = {}

    @overload
    def register(self, cls: Class, *, name: str | None = None) -> Class: ...

    @overload
    def register(self, cls: None = None, *, name: str | None = None) -> Callable[[Class], Class]: ...

    def register(self, cls=None, *, name=None):
        """Register a class, as a decorator: `@DATASETS.register` or `@DATASETS.register(name="Short")`.

        Raises UserError when another class has the name. The same class defined once more (a notebook's cell
        that runs twice) replaces the first.
        """
        if cls is None:
            return lambda decorated: self.register(decorated, name=name)
        name = name or cls.__name__
        if name in self.builtin:
            raise UserError(f"{self.kind} '{name}' is built in; register {_path(cls)} by another name")
        other = self._classes.get(name)
        if other is not None and _path(other) != _path(cls):
            raise UserError(
                f"{self.kind} '{name}' is already {_path(other)}; register {_path(cls)} by another name"
            )
        self._classes[name] = cls
        return cls

    def names(self) -> list[str]:
        """Return the built-in and the registered names, sorted."""
        return sorted([*self.builtin, *self._classes])

    def get(self, name: str) -> type:
        """Return the class `name`: registered, built in, or an import path "package.module:Class" (or
        with a dot).

        Raises UserError for an unknown name, a module that cannot be imported, something that is not a class,
        or a class of another kind.
        """
        if name in self._classes:
            return self._classes[name]
        path = self.builtin.get(name, name)
        module_name, _, class_name = path.rpartition(":" if ":" in path else ".")
        if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
            raise UserError(
                f"unknown {self.kind} '{shown(name)}'{did_you_mean(name, self.names())} "
                f"(one of {', '.join(self.names())}, or your own as package.module:Class)"
            )
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            remedy = "" if name in self.builtin else "; put it beside the config, or its folder on PYTHONPATH"
            raise UserError(f"{self.kind} '{name}': cannot import {module_name}: {error}{remedy}") from error
        cls = getattr(module, class_name, None)
        if not isinstance(cls, type):
            what = "has no class" if cls is None else "has something that is no class:"
            hint = did_you_mean(class_name, (n for n, v in vars(module).items() if isinstance(v, type)))
            raise UserError(f"{self.kind} '{name}': module {module_name} {what} {class_name}{hint}")
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

    def build(self, name: str, **kwargs: Any) -> Any:
        """Return `get(name)(**kwargs)`."""
        return self.get(name)(**kwargs)


def is_import_path(name: str) -> bool:
    """Return whether a name is "package.module:Class", or the same with a dot, and not a registered one."""
    return ":" in name or "." in name


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


BACKBONES = Registry(
    "backbone",
    {
        **{f"IResNet{n}": f"plsc.backbones.iresnet:IResNet{n}" for n in (18, 34, 50, 100, 200)},
        **{f"ResNet{n}": f"plsc.backbones.resnet:ResNet{n}" for n in (50, 100, 101, 152)},
        **{f"FaceViT_{n}": f"plsc.backbones.face_vit:FaceViT_{n}" for n in ("tiny", "small", "base")},
        "LeNet": "plsc.backbones.lenet:LeNet",
        "MobileFaceNet": "plsc.backbones.mobilefacenet:MobileFaceNet",
        "SmallResNet": "plsc.backbones.small_resnet:SmallResNet",
    },
    bases=("paddle.nn:Layer",),
)

# In a config, `x` keeps all class centres on every rank and `dist_x` shards them (plsc/heads/config.py,
# HeadCfg.name).
MARGINS = Registry(
    "margin",
    {
        "arcface": "plsc.heads.margins:ArcFace",
        "cosface": "plsc.heads.margins:CosFace",
        "sphereface": "plsc.heads.margins:SphereFace",
        "combined": "plsc.heads.margins:CombinedMargin",
        "adaface": "plsc.heads.adaptive:AdaFace",
        "magface": "plsc.heads.adaptive:MagFace",
        "curricularface": "plsc.heads.adaptive:CurricularFace",
    },
    bases=("plsc.heads.margins:Margin",),
)

DATASETS = Registry(
    "dataset",
    {
        "BinPairs": "plsc.data.bin_packs:BinPairs",
        "GalleryProbe": "plsc.data.templates:GalleryProbe",
        "Glyphs": "plsc.data.glyphs:Glyphs",
        "GlyphPairs": "plsc.data.glyphs:GlyphPairs",
        "IdxImages": "plsc.data.idx:IdxImages",
        "IjbPairs": "plsc.data.templates:IjbPairs",
        "ImageFolder": "plsc.data.folder:ImageFolder",
        "ImageList": "plsc.data.image_list:ImageList",
        "ImagePairs": "plsc.data.pairs:ImagePairs",
        "PairList": "plsc.data.pairs:PairList",
        "RecImages": "plsc.data.rec:RecImages",
        "Synthetic": "plsc.data.synthetic:Synthetic",
    },
    bases=tuple(f"plsc.data.dataset:{name}" for name in ("Dataset", "PairSet", "IdentificationSet")),
)

PARTS = Registry(
    "part",
    {
        "triplet": "plsc.training.parts.pair_losses:Triplet",
        "supcon": "plsc.training.parts.pair_losses:SupCon",
        "circle": "plsc.training.parts.pair_losses:Circle",
        "multi_similarity": "plsc.training.parts.pair_losses:MultiSimilarity",
    },
    bases=("plsc.training.parts.part:Part",),
)

SCHEDULES = Registry("schedule", {}, bases=("plsc.config.schedule:Schedule",))

OPTIMIZERS = Registry("optimizer", {}, bases=("paddle.optimizer:Optimizer",))
