"""The rules that the project keeps about itself, as checkers: source text in, one line for each breach out.

tests/test_structure.py applies them to the sources. Nothing is imported from what is checked: an import inside a function
counts like one at the top.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The floors of the house, highest first: an import goes to a lower line. Rooms of one line do not import each other.
FLOORS = (
    "tools",
    "__main__",
    "cli door",
    "entry",
    "trainer setters benchmark importers selftest convert doctor ckpt supervisor",
    "tester results divergence restore finetune",
    "report",
    "backbones heads data embed optim evaluation checkpoint export",
    "config distributed launcher guard kernels",
    "reference registry sharding environment log unpickle lock timing space half tensors",
    "files",
    "errors atomic_write",
)
# A package is a room, and so is a module; these rooms have more modules than one. The door is plsc/__init__.py.
ROOM_OF = {
    "": "door",
    **dict.fromkeys(
        [
            "config_advice",
            "config_errors",
            "config_layers",
            "config_margin",
            "config_sections",
            "config_yaml",
        ],
        "config",
    ),
    **dict.fromkeys(["manifest", "tensorfile", "names", "train_state"], "checkpoint"),
    **dict.fromkeys(["figures", "rate_figures", "drawing"], "report"),
    **dict.fromkeys(
        [
            "benchmark_loader",
            "benchmark_backbone",
            "benchmark_head",
            "benchmark_collectives",
            "benchmark_end2end",
            "benchmark_plan",
            "benchmark_save",
            "plan",
            "calibration",
        ],
        "benchmark",
    ),
    **dict.fromkeys(["rewrite", "centres", "foreign", "identities"], "ckpt"),
    "selftest_parts": "selftest",
    **dict.fromkeys(["torchfile", "paddlefile"], "unpickle"),
    "postmortem": "supervisor",
    "rollback": "trainer",
    "build": "trainer",
    "dump": "divergence",
}
# A wrong config must be refused, and a data worker start, without the seconds and the memory that Paddle takes.
WITHOUT_PADDLE = "errors atomic_write registry sharding environment log unpickle config data evaluation report checkpoint setters entry cli door convert doctor ckpt guard lock supervisor timing space half files"
# These know no ranks; or rank and world size come in as integers.
WITHOUT_RANKS = "backbones data optim evaluation report checkpoint export"

_COLLECTIVES = re.compile(
    r"paddle\.(distributed|DataParallel|(nn\.)?SyncBatchNorm|_(legacy_)?C_ops\.(c_|all_|reduce_|mp_))"
)
_REFUSED = {
    r"(pickle|cPickle|dill|marshal|shelve|joblib)(\.|$)": "runs what the data say",
    r"yaml\.(load|load_all|full_load|unsafe_load)$": "builds any object that the text names",
    r"paddle\.(load|save)$": "pickles",
    r"os\.(system|popen)$": "goes through a shell",
}
_REFUSED_CALLS = ("eval", "exec", "compile", "__import__")
# Two stated exceptions. A data worker is our own child, and its data set reaches it as a pickle, as with multiprocessing.
# The restricted unpickler reads pickles from outside and lets them build numbers, text and arrays only.
MAY_PICKLE = ("plsc/data/workers.py", "plsc/utils/safe_pickle.py")


def sources() -> dict[str, str]:
    """Path below the root -> text, of the package and the tools."""
    files = sorted([*ROOT.glob("plsc/**/*.py"), *ROOT.glob("tools/*.py")])
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def room(path: str) -> str:
    """The room of a source file: "plsc/heads/bank.py" -> "heads"."""
    folder, _, rest = path.partition("/")
    name = rest.split("/")[0].removesuffix(".py")
    return folder if folder != "plsc" else "door" if name == "__init__" else ROOM_OF.get(name, name)


def floor(name: str) -> int | None:
    """The number of a room's floor, 0 at the top; None for a room that FLOORS does not have."""
    return next((number for number, rooms in enumerate(FLOORS) if name in rooms.split()), None)


def layering(path: str, text: str) -> list[str]:
    """Imports that do not point down, and a room that stands nowhere."""
    here = room(path)
    if floor(here) is None:
        return [f"{path}: the room '{here}' is on no floor; give it one in FLOORS"]
    found = []
    for line, module in _imports_of_plsc(ast.parse(text)):
        there = "?" if module.startswith(".") else ROOM_OF.get(module, module)
        if there == "?":
            found.append(f"{path}:{line}: a relative import; write plsc.{module.lstrip('.')}")
        elif floor(there) is None:
            found.append(f"{path}:{line}: imports '{there}', which is on no floor; give it one in FLOORS")
        elif there != here and floor(there) <= floor(here):
            found.append(f"{path}:{line}: {here} imports {there}, which is not below it")
        elif there == "distributed" and here in WITHOUT_RANKS.split():
            found.append(f"{path}:{line}: {here} imports distributed, and has to know no ranks")
    return found


def _imports_of_plsc(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, first part below plsc) of each import: "heads" for `from plsc.heads import bank`, "" for the door."""
    modules = {path.stem for path in (ROOT / "plsc").iterdir()}
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                # `import plsc` alone is for the version, which stands in the door so that setup.py finds it.
                if package == "plsc" and (rest or alias.asname or not _only_version(tree)):
                    yield node.lineno, rest.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "." * node.level + (node.module or names[0])
        elif isinstance(node, ast.ImportFrom) and node.module == "plsc":
            yield from ((node.lineno, name if name in modules else "") for name in names)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("plsc."):
            yield node.lineno, node.module.split(".")[1]


def _only_version(tree: ast.AST) -> bool:
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return all(node.attr == "__version__" for node in attributes if ast.unparse(node.value) == "plsc")


def dotted_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, full name) of all that is imported, and of each attribute of it: `dist.barrier` -> paddle.distributed.barrier."""
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                full[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                parts, inner = [inner.attr, *parts], inner.value
            if isinstance(inner, ast.Name) and inner.id in full:
                yield node.lineno, ".".join([full[inner.id], *parts])


def collectives(path: str, text: str) -> list[str]:
    """Uses of Paddle's collectives, and of what calls them, outside of plsc/distributed/collectives.py."""
    if path == "plsc/distributed/collectives.py":
        return []
    uses = {(line, name) for line, name in dotted_names(ast.parse(text)) if _COLLECTIVES.match(name)}
    return [
        f"{path}:{line}: {name} belongs in plsc/distributed/collectives.py" for line, name in sorted(uses)
    ]


def paddle_imports(path: str, text: str) -> list[str]:
    """Imports of Paddle by a room that does without."""
    if room(path) not in WITHOUT_PADDLE.split():
        return []
    lines = sorted({line for line, name in dotted_names(ast.parse(text)) if name.split(".")[0] == "paddle"})
    return [f"{path}:{line}: {room(path)} does without Paddle" for line in lines]


def unsafe(path: str, text: str) -> list[str]:
    """eval and its like, pickle, loaders that run what the data say, a shell; and errors caught unnamed or unsaid."""
    tree, found = ast.parse(text), []
    for line, name in dotted_names(tree):
        why = next((why for pattern, why in _REFUSED.items() if re.match(pattern, name)), None)
        if why and not (path in MAY_PICKLE and name.startswith("pickle")):
            found.append(f"{path}:{line}: {name} {why}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _REFUSED_CALLS:
                found.append(f"{path}:{node.lineno}: {node.func.id}() runs text as code")
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "shell") and ast.unparse(keyword.value) != "False":
                    found.append(f"{path}:{node.lineno}: {keyword.arg}={ast.unparse(keyword.value)}")
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            if not caught or caught == "BaseException":
                found.append(f"{path}:{node.lineno}: catches everything; name the errors")
            elif caught == "Exception" and isinstance(node.body[0], (ast.Pass, ast.Continue)):
                found.append(f"{path}:{node.lineno}: swallows every error; name them, or say what happened")
    return found


def docstrings(path: str, text: str) -> list[str]:
    """A module that does not say what it is (an empty one, that only makes its folder a package, need not)."""
    return [] if not text.strip() or ast.get_docstring(ast.parse(text)) else [f"{path}: has no docstring"]
