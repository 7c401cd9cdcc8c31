"""docs/lenet_from_scratch.py, behaviour by behaviour: one test for each row of seed 1 in the seeds' table."""

import importlib.util
import itertools
import math
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from plsc.backbones.lenet import LeNet
from tests.helpers.bounds import EPS, assert_within, perturbed
from tests.helpers.idx_files import DATA, ROOT, needs_fashion_mnist, write_family

_spec = importlib.util.spec_from_file_location("lenet_from_scratch", ROOT / "docs" / "lenet_from_scratch.py")
scratch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scratch)


PLACES = 26 * 26  # of a sample: a step's longest sum, the first bias's gradient, is over all samples' sums


def places(k):
    return [paddle.CPUPlace() for _ in range(k)]


def batch(size, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((size, 1, 28, 28), np.float32)
    return paddle.to_tensor(X), paddle.to_tensor(rng.integers(0, 10, size))


def replicas(k, scale=0.1, seed=0):
    return [scratch.get_params(scratch.init_params(scale, seed), place) for place in places(k)]


def tensors(arrays):
    """Parameters of the arrays' dtype."""
    return scratch.get_params([paddle.to_tensor(array) for array in arrays], paddle.CPUPlace())


def batch_like(params, size, seed=0):
    """A batch in the dtype of the first parameter copy."""
    X, y = batch(size, seed)
    return X.astype(params[0][0].dtype), y


def numbers(params):
    return [param.numpy() for param in params]


def largest_difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other))


def test_row_1_1_ten_steps_on_1_2_and_4_devices_end_in_the_same_parameters():

    def train(params, k=1):
        for step in range(10):
            scratch.train_batch(*batch_like(params, 64, step), params, places(k), lr=0.2)
        return numbers(params[0])

    first = numbers(scratch.init_params())
    want, bound = perturbed(lambda *params: train([tensors(params)]), *first, terms=64 * PLACES, times=2)
    assert largest_difference(want, first) > 0.01, "something must have been learnt"
    for k in (1, 2, 4):
        assert_within(train(replicas(k, scale=0.01), k), want, bound)


def test_row_1_2_the_network_and_its_eight_tensors(monkeypatch):
    maps = []
    for name in ("conv2d", "avg_pool2d", "linear"):
        original = getattr(scratch.F, name)

        def record(*args, original=original, **options):
            out = original(*args, **options)
            maps.append(tuple(out.shape))
            return out

        monkeypatch.setattr(scratch.F, name, record)
    X, params = batch(3)[0], scratch.init_params(0.1)
    scores = scratch.lenet(X, params).numpy()
    monkeypatch.undo()
    assert maps == [
        *((3, 20, 26, 26), (3, 20, 13, 13), (3, 50, 9, 9), (3, 50, 4, 4)),
        *((3, 128), (3, 10)),
    ]
    shapes = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
    assert [tuple(param.shape) for param in params] == shapes
    assert sum(math.prod(shape) for shape in shapes) == 129_068
    # The backbone and its head compute the same, and tests/backbones compares that one with NumPy.
    backbone = LeNet()
    for own, param in zip(backbone.parameters(), params):
        own.set_value(param)
    by_backbone = backbone(X).numpy() @ params[6].numpy() + params[7].numpy()
    wide = lambda *arrays: scratch.lenet(X.astype("float64"), tensors(arrays)).numpy()
    want, bound = perturbed(wide, *numbers(params))
    assert_within([scores, by_backbone], [want, want], [bound, bound])


def test_row_1_3_the_initial_weights_are_normal_and_the_biases_zero():
    params = numbers(scratch.init_params())
    assert 0.0095 <= params[4].std() <= 0.0105 and abs(params[4].mean()) < 1e-4
    assert abs((np.abs(params[4]) < 0.01).mean() - 0.6827) < 0.01, "normal, not uniform"
    assert all(not param.any() for param in params if param.ndim == 1)
    assert largest_difference(params, numbers(scratch.init_params())) == 0, "the seed decides"
    assert largest_difference(params, numbers(scratch.init_params(seed=1))) > 0.01


def test_row_1_4_the_loss_has_one_value_per_sample():
    X, y = batch(8)
    (X_part, _), (y_part, _) = (scratch.split_and_load(data, places(2)) for data in (X, y))
    values = scratch.loss(scratch.lenet(X_part, scratch.init_params()), y_part)
    assert tuple(values.shape) == (4,)
    assert abs(values.mean().item() - math.log(10)) < 0.01
    scores = np.random.default_rng(0).normal(size=(4, 10))
    expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(4), y_part.numpy()]
    assert np.allclose(scratch.loss(paddle.to_tensor(scores), y_part).numpy(), expected)


def test_row_1_5_get_params_copies_and_attaches_gradients_of_zeros():
    source = scratch.init_params()
    before, place = numbers(source), paddle.CPUPlace()
    copies = scratch.get_params(source, place)
    for copy, param, value in zip(copies, source, before):
        assert copy.place._equals(place) and np.array_equal(copy.numpy(), value)
        assert not copy.stop_gradient and not copy.grad.numpy().any() and copy.grad.shape == copy.shape
        with paddle.no_grad():
            copy.add_(paddle.ones_like(copy))
        assert np.array_equal(param.numpy(), value), "editing the copy must leave the source alone"
        assert param.stop_gradient and param.grad is None


def test_row_1_6_allreduce_sums_in_place_on_every_device():
    data = [paddle.full([2, 3], float(number)) for number in (1, 2, 3)]
    storage = [tensor.data_ptr() for tensor in data]
    assert scratch.allreduce(data) is None
    assert all((tensor.numpy() == 6).all() for tensor in data)
    assert [tensor.data_ptr() for tensor in data] == storage and len(set(storage)) == 3
    alone = [paddle.to_tensor([1.0, 2.0])]
    scratch.allreduce(alone)
    assert alone[0].numpy().tolist() == [1, 2]


def test_row_1_7_split_and_load_cuts_in_order_and_refuses_what_it_cannot_cut():
    data = paddle.arange(18).reshape([6, 3])
    first, second = scratch.split_and_load(data, places(2))
    assert np.array_equal(first.numpy(), data.numpy()[:3]) and np.array_equal(
        second.numpy(), data.numpy()[3:]
    )
    with pytest.raises(AssertionError, match=r"^# examples is not divided by # devices\.$"):
        scratch.split_and_load(paddle.zeros([7, 3]), places(2))


@pytest.fixture
def tiny(tmp_path):
    """A folder with 60 images to train on and 20 to validate."""
    return write_family(tmp_path, train=6, test=2)


@pytest.mark.parametrize("k", [1, 2])
def test_row_1_8_train_says_where_it_runs_and_runs_five_epochs(k, tiny, capsys):
    scratch.train(num_gpus=k, batch_size=20, lr=0.2, folder=tiny)
    lines = capsys.readouterr().out.splitlines()
    (where,) = (line for line in lines if line.startswith("running on: ["))
    assert where == lines[0] and where.count("Place(cpu)") == k
    epochs = [re.fullmatch(r"epoch (\d+), time \d+\.\d sec", line) for line in lines]
    assert [int(found[1]) for found in epochs if found] == [1, 2, 3, 4, 5]


def gradients(step, *arrays):
    """The summed loss's gradients for a step's batch, by one graph in float64."""
    params = tensors(arrays)
    X, y = batch_like([params], 16, step)
    scratch.loss(scratch.lenet(X, params), y).sum().backward()
    return [param.grad.numpy() for param in params]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_row_1_9_after_a_step_all_replicas_are_equal_and_hold_the_sum_of_the_gradients(k):
    params = replicas(k)
    for step in range(3):
        X, y = batch(16, step)
        alone = numbers(params[0])
        scratch.train_batch(X, y, params, places(k), lr=0.5)
        for first, *others in zip(*params):
            assert all(np.array_equal(first.numpy(), other.numpy()) for other in others)
            assert all(np.array_equal(first.grad.numpy(), other.grad.numpy()) for other in others)

        want, bound = perturbed(partial(gradients, step), *alone, terms=16 * PLACES, times=2)
        assert_within([param.grad.numpy() for param in params[0]], want, bound)


def test_row_1_10_the_whole_batch_divides_the_summed_gradient():
    def step(params, k=1):
        scratch.train_batch(*batch_like(params, 32), params, places(k), lr=0.5)
        return numbers(params[0])

    before = numbers(replicas(1)[0])
    want, bound = perturbed(lambda *params: step([tensors(params)]), *before, terms=32 * PLACES, times=2)
    assert largest_difference(want, before) > 1e-3
    for k in (1, 2, 4):
        params = replicas(k)
        assert_within(step(params, k), want, bound)
        for param, value in zip(params[0], before):
            change = np.float32(0.5) * param.grad.numpy() / np.float32(32)
            assert_within(param.numpy(), np.float64(value) - change, EPS * (np.abs(value) + np.abs(change)))


def test_row_1_11_the_clock_is_read_when_every_device_is_done(tiny, capsys, monkeypatch):
    events, clock = [], itertools.count(100.0, 7.0)
    # Not the module's own time, which other threads of this process ask, too.
    monkeypatch.setattr(scratch, "time", SimpleNamespace(time=lambda: events.append("clock") or next(clock)))
    steps, wait = scratch.train_batch, scratch.synchronise
    monkeypatch.setattr(scratch, "train_batch", lambda *args: events.append("step") or steps(*args))
    monkeypatch.setattr(scratch, "synchronise", lambda params: events.append("wait") or wait(params))
    scratch.train(num_gpus=2, batch_size=20, lr=0.2, folder=tiny)
    assert events == ["clock", "step", "step", "step", "wait", "clock"] * 5
    assert capsys.readouterr().out.count(", time 7.0 sec") == 5


def test_row_1_12_validation_accuracy_is_that_of_any_replica(tiny, capsys):
    params = scratch.train(num_gpus=2, batch_size=10, lr=0.1, folder=tiny, scale=0.1)
    said = re.findall(r"^validation accuracy: (\d\.\d{4})$", capsys.readouterr().out, re.MULTILINE)
    assert len(said) == 5
    for replica in params:
        assert f"{scratch.accuracy(scratch.load_data(tiny, 'test', 7), replica):.4f}" == said[-1]
    X, y = next(scratch.load_data(tiny, "test", 20))
    predicted = scratch.lenet(X, params[0]).numpy().argmax(axis=1)
    assert f"{(predicted == y.numpy()).mean():.4f}" == said[-1]
    assert len(set(predicted.tolist())) > 1, "a network that always says the same proves little"


def check_batches(folder, count):
    sizes, seen = [], []
    for X, y in scratch.load_data(folder, "train", 256, seed=1):
        assert tuple(X.shape) == (len(y), 1, 28, 28) and X.dtype == paddle.float32 and y.dtype == paddle.int64
        assert 0 <= X.min().item() and 0.5 < X.max().item() <= 1
        sizes.append(len(y))
        seen += y.numpy().tolist()
    assert sizes == [256] * (count // 256) + [count % 256]
    assert sorted(set(seen)) == list(range(10))
    for k in (1, 2, 3, 4, 6, 8):
        assert [len(part) for part in scratch.split_and_load(X, places(k))] == [96 // k] * k
    for k in (5, 7):
        with pytest.raises(AssertionError, match="# examples is not divided by # devices"):
            scratch.split_and_load(X, places(k))


def test_row_1_13_the_loader_gives_pixels_from_0_to_1_and_a_smaller_last_batch(tmp_path):
    """As many images left over as Fashion-MNIST has: 60,000 % 256 = 96."""
    folder = write_family(tmp_path, train=112, test=1)
    check_batches(folder, 1120)


@needs_fashion_mnist
def test_row_1_13_on_fashion_mnist_itself():
    check_batches(DATA / "fashion_mnist", 60_000)
