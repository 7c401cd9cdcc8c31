"""Print the kernels of Paddle's GPU build, the ops of the same dtypes on one line. No GPU is needed.

python -m venv gpu && gpu/bin/pip install paddlepaddle-gpu==2.6.2
gpu/bin/python tests/gpu_ops/make_table.py > tests/gpu_ops/kernels-2.6.2.txt
"""

from __future__ import annotations

import collections

import paddle
from paddle.base import core

# Backends whose kernels Paddle takes on a GPU: its own, cuDNN's, and those that serve every backend.
BACKENDS = ("GPU", "GPUDNN", "KPS", "Undefined")


def main() -> None:
    assert paddle.is_compiled_with_cuda(), "install paddlepaddle-gpu"
    print(
        f"# Kernels of paddlepaddle-gpu {paddle.__version__} by their dtypes, made by make_table.py; any: every dtype."
    )
    lines = collections.defaultdict(list)
    for name, kernels in sorted(core._get_registered_phi_kernels("all").items()):
        keys = [kernel.strip("()").split(", ") for kernel in kernels]
        dtypes = {key[-1] for key in keys if key[0] in BACKENDS}
        if dtypes:
            found = sorted("any" if dtype == "Undefined" else dtype for dtype in dtypes)
            lines[" ".join(found)].append(name)
    for dtypes, names in sorted(lines.items()):
        print(f"{dtypes}: {' '.join(names)}")


if __name__ == "__main__":
    main()
