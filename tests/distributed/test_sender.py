"""A copy to the device does not wait."""

import numpy as np
import paddle
import pytest

from plsc.distributed import accelerator
from plsc.distributed.accelerator import Sender, asynchronous, to_device


@pytest.mark.parametrize(("setting", "expected"), [("0", True), ("1", False), (None, False)])
def test_kernels_turned_off_stand_for_a_gpu(setting, expected, monkeypatch):
    if setting is None:
        monkeypatch.delenv("PLSC_KERNELS", raising=False)
    else:
        monkeypatch.setenv("PLSC_KERNELS", setting)
    paddle.set_device("cpu")
    assert asynchronous() is expected


@pytest.mark.parametrize(
    "array", [np.arange(4), np.ones((2, 3), np.uint8), np.float32(3.0)[...], np.zeros((0, 2))]
)
def test_an_array_on_the_device_is_a_copy(array):
    expected = array.copy()
    tensor = to_device(array)
    if array.size:
        array[...] = 7
    assert tensor.stop_gradient
    assert tensor.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_of_pinned_memory_paddle_keeps_the_source_itself(monkeypatch):
    monkeypatch.setattr(accelerator, "kind_in_use", lambda: "gpu")
    monkeypatch.setattr(paddle, "CUDAPinnedPlace", paddle.CPUPlace)
    assert to_device(np.arange(3)).tolist() == [0, 1, 2] and not accelerator._in_flight


@pytest.fixture
def as_a_gpu(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")


def test_what_is_sent_stays_for_one_more_step(as_a_gpu):
    sender = Sender()
    pictures = [np.full((2, 3), number, np.uint8) for number in range(7)]
    sent = []
    for number, picture in enumerate(pictures):
        sent.append(sender.send(picture))
        picture[...] = 99
        for before in range(max(0, number - 1), number + 1):
            assert sent[before].dtype == paddle.uint8 and (sent[before].numpy() == before).all()


def test_arrays_of_other_shapes_are_sent_beside(as_a_gpu):
    sender = Sender()
    whole = sender.send(np.zeros((4, 2), np.float32))
    rest = sender.send(np.ones((3, 2), np.float32))
    assert whole.numpy().sum() == 0 and rest.numpy().sum() == 6 and rest.stop_gradient


def test_on_the_synchronous_way_an_array_is_passed_on(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "1")
    array = np.zeros(3)
    assert Sender().send(array) is array


class FakeGpu:
    """Streams and events that log what is asked of them, in the order of the calls."""

    def __init__(self, monkeypatch):
        self.log = log = []
        current = ["compute"]

        class Event:
            def __init__(self):
                self.of = None

            def record(self, stream=None):
                self.of = (stream.name if stream else current[-1], len(log))
                log.append(("record", self.of[0]))

            def synchronize(self):
                if self.of is not None:
                    log.append(("host waits", self.of))

        class Stream:
            def __init__(self, name="copies"):
                self.name = name

            def wait_event(self, event):
                log.append((self.name, "waits", event.of))

            def wait_stream(self, stream):
                log.append((self.name, "waits", stream.name))

        class Guard:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                current.append(self.stream.name)

            def __exit__(self, *_):
                current.pop()

        def copy(to, source, blocking):
            log.append(("copy", current[-1], blocking))
            plain(to, source, True)

        plain = paddle.Tensor.copy_
        monkeypatch.setattr(paddle.Tensor, "copy_", copy)
        monkeypatch.setattr(accelerator, "on_device", lambda: True)
        monkeypatch.setattr(accelerator, "_pinned_place", paddle.CPUPlace)
        monkeypatch.setattr(paddle.device, "Event", Event)
        monkeypatch.setattr(paddle.device, "Stream", Stream)
        monkeypatch.setattr(paddle.device, "stream_guard", Guard)
        monkeypatch.setattr(paddle.device, "current_stream", lambda: Stream(current[-1]))


def test_a_gpu_copies_on_a_stream_of_its_own_and_each_waits_for_the_other(monkeypatch):
    """Copies wait for the work queued one call before, computing waits for the copy; the host for a copy two
    calls ago."""
    gpu = FakeGpu(monkeypatch)
    sender = Sender()
    places = set()
    for number in range(5):
        start = len(gpu.log)
        sent = sender.send(np.full(4, number))
        places.add(sent.data_ptr())
        assert (sent.numpy() == number).all()
        asked = gpu.log[start:]
        assert ("copy", "copies", False) in asked
        place = asked.index(("copy", "copies", False))
        assert asked[place + 1] == ("record", "copies")
        assert asked[place + 2] == ("compute", "waits", ("copies", start + place + 1))
        assert asked[place + 3] == ("record", "compute")
        if number:  # the event that the call before has recorded last
            assert asked[place - 1] == ("copies", "waits", ("compute", start - 1))
        else:
            assert ("copies", "waits", "compute") in asked
        waits = [entry for entry in asked if entry[0] == "host waits"]
        assert len(waits) == (number >= Sender.BUFFERS)
    assert len(places) == Sender.BUFFERS
