"""The images of the next step are copied to a device while this one runs, and change no number."""

import pytest

from plsc.training import parallel_backbone as network_module
from tests.helpers.poison import everything
from tests.helpers.tiny_runs import make_trainer


def train(folder, monkeypatch, ahead, *more):
    """-> the state at the end, copies in each forward pass, micro-batches of a step, copies in all."""
    trainer = make_trainer(folder, "DataLoader.Eval.dataset=null", "Global.max_steps=4", *more)
    network, forward, to_device = trainer.network, trainer.network.forward, network_module.to_device
    copies, of_pass = [], []

    def counted(array):
        copies.append(array.shape)
        return to_device(array)

    def watched(images, step):
        before = len(copies)
        out = forward(images, step)
        of_pass.append(len(copies) - before)
        return out

    network.forward = watched
    if not ahead:
        network.send_ahead = lambda images, step: None
    with monkeypatch.context() as patched:
        patched.setattr(network_module, "to_device", counted)
        trainer.train(None)
    return everything(trainer), of_pass, len(network._parts), len(copies)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_images_are_sent_one_step_ahead(tmp_path, monkeypatch, accumulate):
    monkeypatch.setenv("PLSC_KERNELS", "0")
    more = [f"DataLoader.Train.batch_size={8 // accumulate}", "DataLoader.Train.global_batch=8"]
    state, of_pass, parts, copies = train(tmp_path / "ahead", monkeypatch, True, *more)
    want, of_pass_without, _, copies_without = train(tmp_path / "without", monkeypatch, False, *more)
    assert state == want and parts == accumulate
    # Nothing was sent before the first step of an epoch.
    assert of_pass_without == [parts] * 4 and of_pass[0] == parts and 0 in of_pass[1:]
    assert copies == copies_without == 4 * parts
