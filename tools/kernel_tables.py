"""Print the operators that the vendors' kernels are for, as they register them:
plsc/distributed/kernel_tables.txt.

    python tools/kernel_tables.py PaddleCustomDevice/.git Paddle/paddle/phi/backends/xpu/xpu3_op_list.cc

The first is a clone of PaddlePaddle/PaddleCustomDevice, whose newest commit is read, the second Kunlun's
list, of names alone. The kernels that Paddle brings for every plug-in are the installed Paddle's.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from paddle.base import core

PLUGINS = ("npu", "mlu", "gcu", "sdaa", "intel_hpu")
DTYPES = {"float": "float32", "double": "float64", "int": "int32"}
DTYPES |= {"complex<float>": "complex64", "complex<double>": "complex128"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONDITION = re.compile(r"^\s*#(?!define)[^\n]*", re.MULTILINE)  # all branches count
_MACRO = re.compile(r"#define\s+(\w+)\(([^)]*)\)((?:[^\n]*\\\n)*[^\n]*)")
_REGISTER = "PD_REGISTER_PLUGIN_KERNEL"

Table = dict[str, set[str]]  # operator -> dtypes of its kernels


def git(repository: str, *words: str) -> str:
    return subprocess.run(
        ["git", "--git-dir", repository, *words],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def arguments(text: str, name: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of a macro."""
    for match in re.finditer(rf"\b{name}\(", text):
        depth, begin, found = 1, match.end(), []
        for at in range(match.end(), len(text)):
            depth += (text[at] in "(<{") - (text[at] in ")>}")
            if depth == 0 or (depth == 1 and text[at] == ","):
                found.append(text[begin:at].strip())
                begin = at + 1
            if depth == 0:
                break
        yield found


def read(text: str, macros: dict[str, tuple[list[str], str]], table: Table) -> None:
    """Add the kernels that a source registers, also by macros that end in Paddle's."""
    for operator, _, _, _, *dtypes in arguments(text, _REGISTER):
        names = (dtype.split("::")[-1].removesuffix("_t") for dtype in dtypes if dtype)
        table[operator] |= {DTYPES.get(name, name) for name in names}
    for macro, (parameters, body) in macros.items():
        for given in arguments(text, macro):
            filled = body
            named = dict(zip(parameters, given)) | {"__VA_ARGS__": ", ".join(given[len(parameters) - 1 :])}
            for parameter, value in named.items():
                filled = re.sub(rf"\b{re.escape(parameter)}\b", value, filled)
            read(re.sub(r"\s*##\s*", "", filled), macros, table)


def of_plugin(repository: str, kind: str) -> Table:
    table: Table = collections.defaultdict(set)
    files = git(repository, "ls-tree", "-r", "--name-only", "HEAD", f"backends/{kind}/kernels").split()
    for path in files:
        text = _CONDITION.sub("", _COMMENT.sub("", git(repository, "show", f"HEAD:{path}")))
        macros = {
            name: ([each.strip() for each in parameters.split(",")], body.replace("\\\n", ""))
            for name, parameters, body in _MACRO.findall(text)
            if "REGISTER" in body
        }
        read(_MACRO.sub("", text), macros, table)
    return table


def of_xpu(path: str) -> Table:
    names = re.findall(r'\{"(\w+)",\s*XPUKernelSet', Path(path).read_text())
    return {name: {"any"} for listed in names for name in (listed, core._get_phi_kernel_name(listed))}


def of_every_plugin() -> Table:
    """Read the kernels of Paddle that any plug-in's devices take."""
    table: Table = collections.defaultdict(set)
    for name, kernels in core._get_registered_phi_kernels("all").items():
        for backend, layout, dtype in (kernel.strip("()").split(", ") for kernel in kernels):
            if (backend, layout) == ("CUSTOM", "Undefined(AnyLayout)"):
                table[name].add("any" if dtype == "Undefined" else dtype)
    return table


def show(kind: str, source: str, table: Table) -> None:
    """Print a table: the operators of the same dtypes on one line."""
    print(f"\n[{kind}] {source}")
    lines = collections.defaultdict(list)
    for name, dtypes in sorted(table.items()):
        lines[" ".join(sorted(dtypes)) or "any"].append(name)
    for dtypes, names in sorted(lines.items()):
        print(f"{dtypes}: {' '.join(names)}")


def main(repository: str, xpu: str) -> None:
    import paddle

    print(
        "# Operators that kinds of devices have kernels for, by the dtypes of these: tools/kernel_tables.py."
    )
    show("*", f"Paddle {paddle.__version__}, for every plug-in", of_every_plugin())
    commit, date = git(repository, "log", "-1", "--format=%h %cs").split()
    for kind in PLUGINS:
        show(kind, f"{date}, PaddleCustomDevice {commit}, backends/{kind}", of_plugin(repository, kind))
    show("xpu", "2024, Paddle 007a3de3, phi/backends/xpu/xpu3_op_list.cc; names alone", of_xpu(xpu))


if __name__ == "__main__":
    main(*sys.argv[1:])
