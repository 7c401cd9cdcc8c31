"""Compare a backbone with the same network in PyTorch.

The comparison covers outputs, gradients, time and memory for a forward and a backward pass. Each framework
runs in its own process, since threads from two OpenMP runtimes would disturb each other. The processes take
turns, so one waits while the other computes. PyTorch's network gets Paddle's weights. Embeddings and
gradients are compared before anything is timed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import measure
from benchmarks.machine import describe_machine, format_machine
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.utils.text import table

SECONDS = 1.0  # approximate seconds per turn
PAUSE = 0.4  # seconds before a turn, since the other process's threads spin for 0.2 s
FRAMEWORKS = ("paddle", "torch")
# Modes that take turns, by plsc's dtype. A mode is a framework and its dtype. "last" means that channels are
# the feature maps' last axis.
MODES = {
    "float32": ["paddle float32", "torch float32"],
    "bfloat16": [
        "paddle float32",
        "paddle bfloat16",
        *("torch float32", "torch float32 last", "torch bfloat16", "torch bfloat16 last"),
    ],
}


class Network(NamedTuple):
    """A network's default sizes in the comparison."""

    image_shape: tuple[int, int, int]
    batch: int
    embedding_size: int = 512


# SmallResNet has the sizes from `plsc train -c configs/`, the others those from face recognition.
NETWORKS = {
    "SmallResNet": Network((1, 32, 32), 128, 128),
    "IResNet18": Network((3, 112, 112), 16),
    "IResNet50": Network((3, 112, 112), 8),
    "MobileFaceNet": Network((3, 112, 112), 32),
    "FaceViT_tiny": Network((3, 112, 112), 16),
}


def compare(
    names: Sequence[str],
    size: int | None,
    batch: int | None,
    threads: list[int],
    runs: int,
    dtype: str = "float32",
) -> dict:
    """Measure networks in both frameworks with each thread count.

    Args:
        names: the networks' names. An empty list stands for all NETWORKS.
        size: the images' height and width in pixels, or None for the sizes in NETWORKS.
        batch: images in a pass, or None for the batches in NETWORKS.
        threads: thread counts.
        runs: turns per framework.
        dtype: plsc's dtype. bfloat16 is compared with PyTorch's fastest mode, whatever its dtype
            and layout.
    """
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        raise UserError(
            f"--against torch: {unknown[0]} is not written in PyTorch here; there are {', '.join(NETWORKS)}"
        )
    if importlib.util.find_spec("torch") is None:
        raise UserError("--against torch: torch is not installed; pip install torch, or leave --against out")
    rows = []
    for name in names or NETWORKS:
        network = NETWORKS[name]
        channels, height, width = network.image_shape
        network = network._replace(
            image_shape=(channels, size or height, size or width), batch=batch or network.batch
        )
        rows += [_row(name, network, count, runs, dtype) for count in threads]
    return {
        "dtype": dtype,
        **describe_machine(),
        "torch": importlib.metadata.version("torch"),
        "instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", "all of the processor"),
        "rows": rows,
    }


def _row(name: str, network: Network, threads: int, runs: int, dtype: str) -> dict:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = {}
        differences = {}
        for mode in MODES[dtype]:
            file = Path(folder, "weights.npz")
            worker = workers[mode] = stack.enter_context(_worker(mode, name, network, threads, file))
            if mode == "paddle float32":
                worker.ask("save")
            else:
                differences[mode] = worker.ask("compare")
        turns = {mode: [] for mode in workers}
        for _ in range(runs):
            for mode, worker in workers.items():
                time.sleep(PAUSE)
                turns[mode].append(worker.ask("measure"))
    modes = {mode: _median(measured, network.batch) for mode, measured in turns.items()}
    fastest = min(
        (mode for mode in modes if mode.startswith("torch")), key=lambda mode: modes[mode]["seconds"]
    )
    row = {"name": name, **network._asdict(), "threads": threads, **differences[MODES[dtype][1]]}
    row |= {
        "paddle": modes[f"paddle {dtype}"],
        "torch": modes[fastest],
        "torch_mode": fastest.split(" ", 1)[1],
    }
    for key, field in (("over_torch", "seconds"), ("cpu_over_torch", "cpu_seconds")):
        row[key] = row["paddle"][field] / row["torch"][field]
    row["over_float32"] = row["paddle"]["seconds"] / modes["paddle float32"]["seconds"]
    return {**row, "modes": modes}


def _median(measured: list[dict], batch: int) -> dict:
    seconds = statistics.median(one for turn in measured for one in turn["seconds"])
    return {
        "seconds": seconds,
        "cpu_seconds": statistics.median(one for turn in measured for one in turn["cpu_seconds"]),
        "images_per_second": batch / seconds,
        "peak_bytes": max(turn["peak_bytes"] for turn in measured),
    }


def show(result: dict) -> str:
    """Format a table. Times are in milliseconds, and memory is in MB."""
    headers = [
        "network",
        "image",
        "batch",
        "threads",
        "ms",
        "torch, ms",
        "torch in",
        "ratio",
        "of processor time",
    ]
    headers += ["of float32"]
    headers += ["images/s", "torch, images/s", "peak, MB", "torch, MB", "embeddings off", "gradients off"]
    rows = [
        [row["name"], row["image_shape"][1], row["batch"], row["threads"]]
        + [1e3 * row[framework]["seconds"] for framework in FRAMEWORKS]
        + [row["torch_mode"]]
        + [f"{row[key]:.2f}" for key in ("over_torch", "cpu_over_torch", "over_float32")]
        + [row[framework]["images_per_second"] for framework in FRAMEWORKS]
        + [row[framework]["peak_bytes"] / 1e6 for framework in FRAMEWORKS]
        + [f"{row[key]:.0e}" for key in ("embeddings_off", "gradients_off")]
        for row in result["rows"]
    ]
    return (
        f"{format_machine(result)}, torch {result['torch']}, ours in {result['dtype']}, "
        f"oneDNN's instructions: {result['instructions']}\n{table(rows, headers)}"
    )


class _Worker(NamedTuple):
    """A process with one framework. It answers each word with a line of JSON."""

    process: subprocess.Popen
    errors: Path

    def ask(self, word: str) -> dict:
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self.process.wait()
            last = self.errors.read_text(errors="replace").strip().splitlines()[-1:]
            why = "".join(last) or "nothing was printed"
            raise UserError(f"a process of the comparison ended with exit code {code}: {why}")
        return json.loads(answer)


@contextmanager
def _worker(mode: str, name: str, network: Network, threads: int, file: Path) -> Iterator[_Worker]:
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    errors = file.with_name(f"{mode}.txt")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, mode, name, json.dumps(network), str(threads), str(file)],
            env={**environment.for_ranks(), "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    with process:
        try:
            yield _Worker(process, errors)
        finally:
            process.kill()


def main() -> None:
    """Answer the words that `_Worker.ask` writes. This runs in its own process."""
    mode, name, network, threads, file = sys.argv[1:]
    network = Network(*json.loads(network))
    framework, *how = mode.split()
    side = {"paddle": _Paddle, "torch": _Torch}[framework](name, network, int(threads), *how)
    for line in sys.stdin:
        word = line.strip()
        answer = _measure(side) if word == "measure" else getattr(side, word)(Path(file))
        print(json.dumps(answer), flush=True)


def _measure(side) -> dict:
    """Measure passes for about a second, after a warm-up pass that does not count.

    The memory is the peak minus the memory after the imports.
    """
    measure.reset_resident_peak()
    began = time.perf_counter()
    side.run()
    count = max(2, min(20, round(SECONDS / (time.perf_counter() - began))))
    seconds = []
    cpu_seconds = []
    for _ in range(count):
        side.clear()
        began = time.perf_counter()
        cpu_began = time.process_time()
        side.run()
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
    peak = measure.resident_bytes("VmHWM") - side.base
    side.clear()
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak}


def _noise(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Draw the images and the embeddings' gradient. They are the same in both processes."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((network.batch, *network.image_shape), np.float32)
    return images, rng.standard_normal((network.batch, network.embedding_size), np.float32)


class _Paddle:
    def __init__(self, name: str, network: Network, threads: int, dtype: str = "float32"):
        environment.prepare(threads)
        import paddle

        from plsc import distributed
        from plsc.backbones.config import BACKBONES
        from plsc.backbones.malloc import keep_freed_blocks
        from plsc.training.amp import autocast

        distributed.init("cpu", threads)
        keep_freed_blocks(True)  # as training does
        paddle.seed(0)
        self.base = measure.resident_bytes()
        options = {"drop_path": 0.0, "mask_ratio": 0.0} if name.startswith("FaceViT") else {}
        self.net = BACKBONES.get(name)(
            embedding_size=network.embedding_size, image_shape=network.image_shape, **options
        )
        self.images, self.grad = (
            paddle.to_tensor(each, paddle.get_default_dtype()) for each in _noise(network)
        )
        self.autocast = lambda: autocast(None if dtype == "float32" else dtype)

    def run(self):
        with self.autocast():
            emb = self.net(self.images)
        emb.backward(self.grad)
        return emb

    def clear(self) -> None:
        self.net.clear_gradients(set_to_zero=False)

    def save(self, file: Path) -> dict:
        """Save the weights, and a pass's embeddings and gradients."""
        arrays = {f"weight {name}": each.numpy() for name, each in self._parameters().items()}
        arrays["embeddings"] = self.run().numpy()
        arrays |= {f"gradient {name}": each for name, each in self._gradients().items()}
        np.savez(file, **arrays)
        return {}

    def compare(self, file: Path) -> dict:
        """Return how embeddings and gradients differ from those in the file.

        The weights equal those in the file already, since they were drawn with the same seed.
        """
        arrays = _read(file)
        embeddings = {"": self.run().numpy()}
        return {
            "embeddings_off": off(arrays["embeddings"], embeddings),
            "gradients_off": off(arrays["gradient"], self._gradients()),
        }

    def _parameters(self) -> dict:
        # Paddle counts a batch norm's statistics among the parameters.
        parameters = self.net.named_parameters()
        return {name: each for name, each in parameters if not name.endswith(("._mean", "._variance"))}

    def _gradients(self) -> dict[str, np.ndarray]:
        found = {name: each.grad for name, each in self._parameters().items()}
        return {name: grad.numpy() for name, grad in found.items() if grad is not None}


class _Torch:
    def __init__(
        self, name: str, network: Network, threads: int, dtype: str = "float32", layout: str = "first"
    ):
        import torch

        from benchmarks import torch_networks

        torch.set_num_threads(threads)
        self.twins = torch_networks
        self.base = measure.resident_bytes()
        self.net = torch_networks.build(name, network.embedding_size, network.image_shape)
        self.images, self.grad = (
            torch.tensor(each, dtype=torch.get_default_dtype()) for each in _noise(network)
        )
        if layout == "last":
            self.net = self.net.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        self.autocast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

    def run(self):
        with self.autocast():
            emb = self.net(self.images)
        emb.backward(self.grad.to(emb.dtype))
        return emb

    def clear(self) -> None:
        self.net.zero_grad(set_to_none=True)

    def compare(self, file: Path) -> dict:
        """Load the weights from the file, and return how embeddings and gradients differ from it."""
        arrays = _read(file)
        self.twins.copy_weights(self.net, arrays["weight"])
        embeddings = {"": self.run().detach().to(self.images.dtype).numpy()}
        return {
            "embeddings_off": off(arrays["embeddings"], embeddings),
            "gradients_off": off(arrays["gradient"], self.twins.gradients(self.net)),
        }


def _read(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read the arrays that `_Paddle.save` wrote, by kind and name."""
    of = {kind: {} for kind in ("weight", "gradient", "embeddings")}
    with np.load(file) as arrays:
        for key in arrays:
            kind, _, name = key.partition(" ")
            of[kind][name] = arrays[key]
    return of


def off(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Return the distance between two sets of tensors, relative to `theirs`'s length.

    Each set is treated as one vector. In float32, gradients in a network with PReLU or ReLU differ by up
    to a thousandth, since a number near 0 may get different slopes in the two frameworks.
    """
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    squares = [np.square(ours[name] - each, dtype=np.float64).sum() for name, each in theirs.items()]
    length = sum(np.square(each, dtype=np.float64).sum() for each in theirs.values())
    return math.sqrt(sum(squares) / length)


if __name__ == "__main__":
    main()
