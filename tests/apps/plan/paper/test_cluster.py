"""The model of a step on a cluster: parts by hand, and what must grow with what."""

import math
from dataclasses import replace

import pytest

from plsc.apps.plan.paper import cluster as model
from plsc.apps.plan.paper.cluster import Cluster, HeadStyle, Work, seconds
from plsc.apps.plan.paper.devices import DEVICES, Device

GPU = Device("a GPU", 10**9, 1e12, {"float32": 1e12}, nvlink=1e11, pcie=1e10, source="a test")
ONE = Cluster(GPU, 1, 1, math.inf)
WORK = Work(
    samples=10,
    macs=1e9,
    kept=1e8,
    passes=6.2,
    parameters=10**6,
    kernels=100,
    dtype="float32",
    classes=1000,
    shard=1000,
    width=100,
    head_dtype="float32",
)


def total(work=WORK, cluster=ONE):
    return sum(seconds(work, cluster).values())


def test_a_step_of_one_gpu_by_hand():
    parts = seconds(WORK, ONE)
    memory = 0.8e12
    products, passes = 10 * 2e9 / 1.37e12, 10 * 6.2 * 1e8 / memory
    assert parts["forward"] == pytest.approx(products + 0.4 * passes)
    assert parts["backward"] == pytest.approx(2 * products + 0.6 * passes)
    assert parts["head"] == pytest.approx(3 * 2e6 / 0.8e12 + 4 * 1000 * (7 * 10 + 13 * 100) / memory)
    assert parts["optimizer"] == pytest.approx(28e6 / memory)
    assert parts["launches"] == pytest.approx(1e-3)
    assert parts["gather"] == parts["reduce"] == parts["bank"] == 0


def test_gradients_between_machines_are_half_hidden():
    cluster = Cluster(GPU, 2, 1, 8e9)
    between = 4e6 / (0.8 * 1e9) + 2 * model.STEP_BETWEEN
    assert seconds(WORK, cluster)["reduce"] == pytest.approx(between / 2)
    # A backward pass of no time hides nothing.
    assert seconds(replace(WORK, samples=0), cluster)["reduce"] == pytest.approx(between)


def test_replicated_centres_are_summed_instead_of_gathered():
    cluster = Cluster(GPU, 1, 4, math.inf)
    parts = seconds(replace(WORK, sharded=False), cluster)
    assert parts["gather"] == 0
    many = [
        seconds(replace(WORK, sharded=False, shard=shard), cluster)["reduce"] for shard in (10**7, 2 * 10**7)
    ]
    assert many[1] - many[0] == pytest.approx(2 * 3 / 4 * 4e9 / 0.8e11)


def test_a_disk_works_beside_the_step():
    in_memory = total()
    assert total(replace(WORK, from_disk=0.5 * in_memory * model.DISK_BANDWIDTH)) == pytest.approx(in_memory)
    assert total(replace(WORK, from_disk=2 * in_memory * model.DISK_BANDWIDTH)) == pytest.approx(
        2 * in_memory
    )


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 20},
        {"macs": 2e9},
        {"kept": 2e8},
        {"passes": 14},
        {"parameters": 2 * 10**6},
        {"kernels": 200},
        {"classes": 2000, "shard": 2000},
        {"width": 200},
        {"head_products": 4},
        {"head": model.RECOMPUTED},
        {"forwards": 2},
        {"fetched": 1e6},
        {"from_disk": 1e12},
    ],
)
def test_more_work_takes_longer(change):
    for cluster in (ONE, Cluster(GPU, 4, 8, 1e11)):
        assert total(replace(WORK, **change), cluster) > total(WORK, cluster)


def test_more_machines_are_faster_together_and_never_alone():
    work = replace(WORK, dtype="float16", head_dtype="float16")
    clusters = [Cluster(DEVICES["a100"], nodes, 8, 100e9) for nodes in (1, 2, 3, 4, 8, 64)]
    steps = [total(work, cluster) for cluster in clusters]
    speeds = [cluster.ranks / step for cluster, step in zip(clusters, steps)]
    assert steps == sorted(steps) and speeds == sorted(speeds)


def test_a_faster_network_and_nvlink_help():
    slow, fast = (total(WORK, Cluster(GPU, 4, 8, speed)) for speed in (10e9, 200e9))
    assert fast < slow
    assert total(WORK, Cluster(GPU._replace(nvlink=0), 1, 8, math.inf)) > total(
        WORK, Cluster(GPU, 1, 8, math.inf)
    )


def test_our_heads_bytes_are_those_counted():
    """docs/labbook.md: 7.0 GB for 125,000 classes, 7.4 GB for a tenth of a million, N = 1024, D = 512."""
    counted = replace(WORK, width=512)
    whole = replace(counted, classes=125_000, shard=125_000)
    drawn = replace(counted, classes=100_000, shard=10**6)
    assert model.head_bytes_moved(whole, 1024) == pytest.approx(7.027e9, rel=0.03)
    assert model.head_bytes_moved(drawn, 1024) == pytest.approx(7.369e9, rel=0.03)


def test_drawing_costs_only_where_classes_are_drawn():
    style = HeadStyle(9, 18, draw=1e-6)
    drawn = replace(WORK, shard=3000, head=style)
    assert total(drawn) - total(replace(drawn, head=style._replace(draw=0))) == pytest.approx(3e-3)
    assert total(replace(WORK, head=style)) == total(replace(WORK, head=style._replace(draw=0)))


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_of_the_table_is_whole(name):
    device = DEVICES[name]
    assert device.source.startswith("NVIDIA, ") and device.memory % 2**30 == 0
    assert set(device.flops) <= set(model.CONVOLUTIONS)
    assert device.flops["float32"] < device.flops["float16"] and ("tf32" in device.flops) == (
        "bfloat16" in device.flops
    )
    assert device.pcie < device.bandwidth and device.nvlink < device.bandwidth
