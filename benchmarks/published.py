"""Compare what plsc plan's model of a cluster predicts with figures that others published.

    python -m benchmarks published --json published.json

Whole tables are taken: of the GPUs that plan/paper/devices.py knows, with networks whose layers are
published, by programs whose code is. Rows marked "set" were used to find the constants of
plan/paper/cluster.py and programs.py; the others judge them. No constant belongs to one row.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import programs
from benchmarks.programs import Run
from plsc.apps.plan.paper.cluster import Cluster
from plsc.apps.plan.paper.devices import DEVICES
from plsc.utils.text import table

BOUNDS = {"images/s": 0.25, "MB": 0.10, "classes": 0.10}
_MIB = 2**20
_GITHUB = "https://github.com/"
_INSIGHTFACE = f"{_GITHUB}deepinsight/insightface/blob/master"
SOURCES = {
    "speed": f"{_INSIGHTFACE}/recognition/arcface_torch/README.md, Speed Benchmark",
    "3M": f"{_INSIGHTFACE}/recognition/arcface_torch/docs/speed_benchmark.md",
    "V100": f"{_INSIGHTFACE}/benchmarks/train/nvidia_v100.md",
    "A100": f"{_INSIGHTFACE}/benchmarks/train/nvidia_a100.md",
    "PFC": f"{_INSIGHTFACE}/recognition/partial_fc/README.md, Train Glint360K Using MXNET",
    "DLPerf": f"{_GITHUB}Oneflow-Inc/DLPerf/blob/master/reports/insightface/dlperf_insightface_test_report_v1.md",
    "PLSC": f"{_GITHUB}PaddlePaddle/PLSC: README.md of v2.2 (classes), its experiments/logs and the README.md and docs/mixed_precision.md of v0.1 (images/s)",
}
# Rows beyond the bounds -> what explains them, as far as it is known.
REASONS = {
    ("A100", "images/s", 10240): "9,400 images/s may be what its 16 loading processes read",
    ("A100", "images/s", 80_000_000): "the memory is full; PyTorch then frees and asks again in every step",
    ("A100", "MB", "float32"): "cuDNN's workspaces for float32 without TensorFloat-32",
    (
        "PLSC",
        "images/s",
        "PLSC 2.2, static",
    ): "a compiled graph; the model is one of eager ops",
    ("PLSC", "images/s", "PLSC 0.x"): "its first mixed precision, 1.4 times its float32",
}


class Figure(NamedTuple):
    """A published figure and the run it is of."""

    source: str
    what: str
    """A key of BOUNDS."""
    value: float
    run: Run
    cluster: Cluster
    calibrates: bool = False
    limit: float = math.inf
    """Bytes of a GPU that were in use, of a figure in classes."""


def _on(device: str, nodes: int = 1, gpus: int = 8, network: float = math.inf) -> Cluster:
    return Cluster(DEVICES[device], nodes, gpus, network)


def _insightface_v100() -> Iterator[Figure]:
    """arcface_torch on 8 x V100. "speed" does not say its batch: its memory, and "V100", are those of 64
    images a GPU."""
    ours = "arcface_torch, ArcFace"
    v100 = _on("v100")
    ways = (
        # classes -> images/s, MB
        (False, 1.0, {125_000: (4681, 7358), 1_400_000: (1672, 32252)}),
        (True, 1.0, {125_000: (4824, 5306), 1_400_000: (3043, 11178), 5_500_000: (1389, 32188)}),
        (
            True,
            0.1,
            {
                125_000: (5004, 4868),
                1_400_000: (4738, 6056),
                5_500_000: (3975, 9854),
                8_000_000: (3565, 12310),
                16_000_000: (2679, 19950),
                29_000_000: (1855, 32324),
            },
        ),
    )
    for sharded, rate, rows in ways:
        for classes, (speed, size) in rows.items():
            run = Run(ours, "IResNet50", 64, classes, rate, "float16", sharded)
            drawn = classes == 29_000_000
            kept = drawn or (sharded and rate == 1 and classes < 5_000_000)
            yield Figure("speed", "images/s", speed, run, v100, drawn)
            yield Figure("speed", "MB", size * _MIB, run, v100, kept)
    for rate, speed, size in ((1.0, 2271, 28888), (0.1, 5300, 10350)):  # the medians of 5 lines, of 8 GPUs
        run = Run(ours, "IResNet50", 128, 3_000_000, rate, "float16")
        yield Figure("3M", "images/s", speed, run, v100)
        yield Figure("3M", "MB", size * _MIB, run, v100)
    rows = (
        (2_000_000, 64, "float32", 1.0, 1868),
        (2_000_000, 64, "float32", 0.1, 2712),
        (2_000_000, 64, "float16", 1.0, 2576),
        (2_000_000, 64, "float16", 0.1, 4501),
        (2_000_000, 128, "float32", 1.0, 1960),
        (2_000_000, 128, "float32", 0.1, 2922),
        (2_000_000, 128, "float16", 1.0, 2810),
        (2_000_000, 128, "float16", 0.1, 5430),
        (2_000_000, 256, "float16", 0.1, 6095),
        (618_000, 64, "float32", 1.0, 2430),
        (618_000, 64, "float16", 1.0, 3889),
        (618_000, 128, "float32", 1.0, 2607),
        (618_000, 128, "float16", 1.0, 4322),
        (618_000, 256, "float16", 1.0, 4921),
    )
    for classes, batch, dtype, rate, speed in rows:
        run = Run(ours, "IResNet50", batch, classes, rate, dtype)
        yield Figure("V100", "images/s", speed, run, v100, speed == 5430)


def _insightface_a100() -> Iterator[Figure]:
    """arcface_torch on 8 x A100 80GB, a machine for PCIe. The loss is not said; the memory is that of
    CosFace, which the repository's recipes for its largest data have. Layers of the table's IResNet180 and
    IResNet300 are not published."""
    rows = (
        ("IResNet50", 128, 618_000, 1.0, "float32", 3670, 18.2),
        ("IResNet50", 128, 618_000, 1.0, "tf32", 4760, 15.0),
        ("IResNet50", 128, 618_000, 1.0, "float16", 5400, 10.1),
        ("IResNet50", 256, 618_000, 1.0, "float16", 7780, 16.4),
        ("IResNet50", 1280, 618_000, 1.0, "float16", 9400, 66.7),
        ("IResNet100", 128, 618_000, 1.0, "float16", 3700, 13.1),
        ("IResNet100", 128, 2_000_000, 1.0, "float16", 3480, 20.5),
        ("IResNet50", 128, 50_000_000, 0.1, "float16", 2700, 54.1),
        ("IResNet50", 128, 70_000_000, 0.1, "float16", 2170, 73.7),
        ("IResNet50", 128, 80_000_000, 0.1, "float16", 1080, 79.6),
    )
    for network, batch, classes, rate, dtype, speed, size in rows:
        run = Run("arcface_torch, CosFace", network, batch, classes, rate, dtype)
        yield Figure("A100", "images/s", speed, run, _on("a100-pcie"), speed == 5400)
        yield Figure("A100", "MB", size * 1e9, run, _on("a100-pcie"))


def _mxnet() -> Iterator[Figure]:
    rows = (
        ("IResNet100", 64, "float32", 1748),
        ("IResNet100", 64, "float16", 3357),
        ("IResNet100", 128, "float32", 1847),
        ("IResNet100", 128, "float16", 3867),
        ("IResNet50", 64, "float32", 2921),
        ("IResNet50", 64, "float16", 5428),
        ("IResNet50", 128, "float32", 3045),
        ("IResNet50", 128, "float16", 6112),
    )
    for network, batch, dtype, speed in rows:
        run = Run("Partial FC, MXNet", network, batch, 360_232, 0.1, dtype)
        yield Figure("PFC", "images/s", speed, run, _on("v100"), batch == 128)


def _dlperf() -> Iterator[Figure]:
    """OneFlow and MXNet on 1 to 4 machines with 8 x V100 16GB each and 100 Gbit/s InfiniBand, 64 images a
    GPU, float32.

    MXNet's tables without Partial FC send gradients through its parameter server, which the model lacks.
    """
    small, large = 85_742, 360_232
    rows = (
        ("OneFlow", small, 1.0, False, {(1, 1): 245.0, (1, 4): 923.23, (1, 8): 1836.8}),
        ("OneFlow", small, 1.0, True, {(1, 1): 245.29, (1, 4): 938.83, (1, 8): 1854.15}),
        (
            "OneFlow",
            small,
            0.1,
            True,
            {(1, 1): 246.45, (1, 4): 948.96, (1, 8): 1872.81, (2, 8): 3540.09, (4, 8): 6931.6},
        ),
        ("OneFlow", large, 1.0, False, {(1, 1): 230.22, (1, 4): 847.71, (1, 8): 1688.62}),
        ("OneFlow", large, 1.0, True, {(1, 1): 230.33, (1, 4): 912.24, (1, 8): 1808.27}),
        ("OneFlow", large, 0.1, True, {(1, 1): 245.12, (1, 4): 945.44, (1, 8): 1858.57}),
        (
            "Partial FC, MXNet",
            small,
            0.1,
            True,
            {(1, 1): 218.84, (1, 4): 787.07, (1, 8): 1423.12, (2, 8): 2612.65, (4, 8): 5008.72},
        ),
        ("Partial FC, MXNet", large, 0.1, True, {(1, 1): 194.01, (1, 4): 730.29, (1, 8): 1359.2}),
    )
    for program, classes, rate, sharded, speeds in rows:
        run = Run(program, "IResNet100", 64, classes, rate, "float32", sharded)
        for (nodes, gpus), speed in speeds.items():
            yield Figure(
                "DLPerf", "images/s", speed, run, _on("v100-16gb", nodes, gpus, 100e9), speed == 3540.09
            )


def _plsc() -> Iterator[Figure]:
    """PLSC on 8 x V100. "Framework2" of its table of classes is arcface_torch; "Framework1" is a program not
    described here."""
    v100 = _on("v100")
    most = (
        ("PLSC 2.2, static", "IResNet50", 92_000_000, 32298),
        ("PLSC 2.2, static", "IResNet100", 88_000_000, 32298),
        ("PLSC 2.2, dynamic", "IResNet50", 87_000_000, 31978),
        ("PLSC 2.2, dynamic", "IResNet100", 84_000_000, 31978),
        ("arcface_torch, ArcFace", "IResNet50", 30_000_000, 31702),
        ("arcface_torch, ArcFace", "IResNet100", 29_000_000, 32286),
    )
    for program, network, classes, used in most:
        run = Run(program, network, 64, classes, 0.1, "float16")
        yield Figure("PLSC", "classes", classes, run, v100, limit=used * _MIB)
    speeds = (
        ("PLSC 2.2, dynamic", 93_431, 1.0, "float16", 7370),
        ("PLSC 2.2, dynamic", 93_431, 0.1, "float16", 7528),
        ("PLSC 2.2, static", 93_431, 1.0, "float16", 9320),
        ("PLSC 2.2, static", 93_431, 0.1, "float16", 9586),  # each at step 5000 of its log
        ("PLSC 0.x", 1_000_000, 1.0, "float32", 2122.56),
        ("PLSC 0.x", 85_742, 1.0, "float32", 2567.96),
        ("PLSC 0.x", 85_742, 1.0, "float16", 3643.11),
    )
    for program, classes, rate, dtype, speed in speeds:
        yield Figure("PLSC", "images/s", speed, Run(program, "IResNet50", 128, classes, rate, dtype), v100)


FIGURES = (*_insightface_v100(), *_insightface_a100(), *_mxnet(), *_dlperf(), *_plsc())


def predict(figure: Figure) -> float:
    """Predict a figure, in the unit of its value."""
    if figure.what == "images/s":
        return programs.images_per_second(figure.run, figure.cluster)
    if figure.what == "MB":
        return programs.memory(figure.run, figure.cluster)
    return programs.largest_classes(figure.run, figure.cluster, figure.limit)


def off(figure: Figure) -> float:
    """Return by what share of the published value the prediction is above it."""
    return predict(figure) / figure.value - 1


def reason(figure: Figure) -> str | None:
    """Return what explains a row beyond the bounds, None within."""
    if abs(off(figure)) <= BOUNDS[figure.what]:
        return None
    run = figure.run
    keys = (run.classes, run.batch * figure.cluster.ranks, run.dtype, run.program)
    return next(
        (REASONS[key] for each in keys if (key := (figure.source, figure.what, each)) in REASONS), "not known"
    )


# ---- the part of python -m benchmarks


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--misses", action="store_true", help="show the rows beyond the bounds only")


def published(args: argparse.Namespace) -> dict[str, Any]:
    """Compare plsc plan's model of a cluster with published figures."""
    rows = [
        {
            **figure._asdict(),
            "run": figure.run._asdict(),
            "cluster": [figure.cluster.nodes, figure.cluster.gpus],
            "device": figure.cluster.device.name,
            "predicted": predict(figure),
            "off": off(figure),
            "reason": reason(figure),
        }
        for figure in FIGURES
    ]
    shown = [row for row in rows if row["reason"]] if args.misses else rows
    return {"sources": SOURCES, "rows": shown, "summary": summary()}


def summary() -> list[dict[str, Any]]:
    """Sum up the rows that judge, by source and kind."""
    result = []
    for source, what in dict.fromkeys((figure.source, figure.what) for figure in FIGURES):
        here = [figure for figure in FIGURES if (figure.source, figure.what) == (source, what)]
        judging = [off(figure) for figure in here if not figure.calibrates]
        result.append(
            {
                "source": source,
                "what": what,
                "rows": len(here),
                "set": len(here) - len(judging),
                "within": sum(abs(each) <= BOUNDS[what] for each in judging),
                "median": statistics.median(map(abs, judging)) if judging else None,
                "worst": max(judging, key=abs, default=None),
            }
        )
    return result


def show(result: dict[str, Any]) -> str:
    units = {"MB": _MIB}
    rows = []
    for row in result["rows"]:
        run = Run(**row["run"])
        unit = units.get(row["what"], 1)
        nodes, gpus = row["cluster"]
        rows.append(
            [
                row["source"],
                run.program,
                run.network,
                f"{nodes} x {gpus} {row['device']}",
                run.batch,
                f"{run.classes:,}",
                f"{run.rate:g}" if run.sharded else "replicated",
                run.dtype,
                row["what"],
                f"{row['value'] / unit:,.0f}",
                f"{row['predicted'] / unit:,.0f}",
                f"{row['off']:+.0%}",
                "set" if row["calibrates"] else row["reason"] or "",
            ]
        )
    headers = ["source", "program", "network", "GPUs", "batch", "classes", "rate", "dtype", "", "published"]
    sums = [
        [
            *(each[key] for key in ("source", "what", "rows", "set")),
            f"{each['within']} of {each['rows'] - each['set']}",
            None if each["median"] is None else f"{each['median']:.0%}",
            None if each["worst"] is None else f"{each['worst']:+.0%}",
        ]
        for each in result["summary"]
    ]
    names = ["source", "", "rows", "set", "others within 25 % (memory 10 %)", "median", "worst"]
    sources = "\n".join(f"{name}: {source}" for name, source in result["sources"].items())
    return f"{table(rows, [*headers, 'predicted', 'off', ''])}\n\n{table(sums, names)}\n\n{sources}"
