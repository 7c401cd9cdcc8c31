"""What is compared before a run starts on several machines: each planted difference is one line that names
the machine."""

import json
import queue
import re
import subprocess
from importlib import metadata

import pytest

from plsc import native as kernels
from plsc.apps.supervise import preflight
from plsc.apps.supervise.facts import Facts
from plsc.config import load
from plsc.data.synthetic import Synthetic
from plsc.utils import version
from tests.helpers.image_files import write_folder


@pytest.fixture
def images(tmp_path):
    """A folder of images, and a list of them."""
    write_folder(tmp_path / "images", {"ada": 3, "bob": 2})
    lines = ["images/ada/ada_0001.png\t0", "images/ada/ada_0002.png\t0", "images/ada/ada_0003.png\t0"]
    lines += ["images/bob/bob_0001.png\t1", "images/bob/bob_0002.png\t1"]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    return tmp_path


def config(folder, *overrides, name="train.txt"):
    """A config that trains on the list in a folder."""
    data = f"DataLoader.Train.dataset={{name: ImageList, list: {folder / name}, size: [12, 10]}}"
    return load(None, [data, "Global.device=cpu", f"Global.output_dir={folder / 'out'}", *overrides])


def collect(cfg, number, **given):
    """Collect as machine `number`, and send the facts to the first."""
    facts = preflight.collect(
        cfg, **{"ranks": 2, "machines": 3, "address": f"10.0.0.{number}", "interface": "eth0", **given}
    )
    return Facts.model_validate_json(facts.model_copy(update={"host": f"node{number}"}).model_dump_json())


@pytest.fixture
def machines(images):
    """Three machines that agree."""
    return {number: collect(config(images), number) for number in range(3)}


def test_machines_that_agree_have_no_problems(machines):
    assert preflight.compare(machines) == []
    assert "*" not in preflight.format_table(machines)


def only_line(facts, machine=1):
    """The only problem, which is of this machine; the table marks it."""
    (line,) = preflight.compare(facts)
    assert line.startswith(f"machine {machine} (node{machine}): ") and "\n" not in line
    return line


def test_another_version_of_plsc(machines, images, monkeypatch):
    monkeypatch.setattr(preflight, "__version__", "0.0.9")
    machines[1] = collect(config(images), 1)
    assert only_line(machines) == (
        f"machine 1 (node1): plsc 0.0.9, 2 machines have {version.__version__}; install the same version on all machines"
    )
    assert re.search(r"^plsc .* 0\.0\.9 \*", preflight.format_table(machines), re.MULTILINE)


def test_another_version_of_paddle(machines, images, monkeypatch):
    def installed(package):
        if package == "paddlepaddle-gpu":
            return "2.6.2"
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", installed)
    machines[1] = collect(config(images), 1)
    assert "Paddle 2.6.2 (paddlepaddle-gpu), 2 machines have " in only_line(machines)


@pytest.mark.parametrize(
    "fact, other, problem",
    [("Python", "3.5.9", True), ("numpy", "1.20.3", True), ("Python", None, False), ("numpy", None, False)],
)
def test_of_versions_of_python_and_numpy_the_first_two_numbers_count(machines, fact, other, problem):
    usual = getattr(machines[0], fact.lower())
    bugfix = ".".join([*usual.split(".")[:2], "99"])
    setattr(machines[1], fact.lower(), other or bugfix)
    lines = preflight.compare(machines)
    assert [line.split(";")[0] for line in lines] == [
        f"machine 1 (node1): {fact} {other}, 2 machines have {usual}"
    ] * problem


def test_kernels_that_are_missing(machines, images, monkeypatch):
    monkeypatch.delenv("PLSC_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "_FILE", images / "_native.so")
    for facts in machines.values():
        facts.kernels = "version 7"
    machines[1] = collect(config(images), 1)
    assert "kernels none (not built), 2 machines have version 7" in only_line(machines)


def test_another_driver_and_a_gpu_that_is_missing(images, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def facts(number, driver, gpus):
        said = f"NVIDIA A100, {driver}\n" * gpus
        monkeypatch.setattr(
            subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, said)
        )
        return collect(config(images, "Global.device=auto"), number)

    machines = {0: facts(0, "550.1", 8), 1: facts(1, "535.2", 8)}
    assert only_line(machines).startswith(
        "machine 1 (node1): driver 535.2, machine 0 (node0) has 550.1; install the same"
    )
    machines[1] = facts(1, "550.1", 7)
    assert "GPUs 7, machine 0 (node0) has 8" in only_line(machines)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    machines[0] = facts(0, "550.1", 8)
    assert preflight.compare(machines) == []


def test_a_machine_without_nvidia_smi_has_no_gpus(images, monkeypatch):
    monkeypatch.setenv("PATH", str(images))
    facts = collect(config(images, "Global.device=auto"), 0)
    assert (facts.gpus, facts.gpu, facts.driver) == (0, None, None)


def test_another_number_of_ranks(machines, images):
    machines[1] = collect(config(images), 1, ranks=4)
    assert "ranks 4, 2 machines have 2; give the same --nproc_per_node" in only_line(machines)


def test_a_config_that_differs_is_named_by_its_keys(machines, images):
    machines[1] = collect(config(images, "Head.margin=0.3", "Head.scale=30"), 1)
    assert only_line(machines) == (
        "machine 1 (node1): the config differs: Head.margin is 0.3, 2 machines have none; Head.scale is 30.0, 2 machines have 64.0; "
        "give all machines the same -c and -o"
    )


def test_resources_and_folders_of_a_machine_may_differ(images, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("mounted")
    write_folder(elsewhere / "images", {"ada": 3, "bob": 2})
    (elsewhere / "train.txt").write_text((images / "train.txt").read_text())
    others = ["Global.init_from"]
    machines = {0: collect(config(images, *(f"{key}=/here/run" for key in others)), 0)}
    given = [f"{key}={elsewhere}/run" for key in others]
    own = ["Global.threads=1", "DataLoader.Train.num_workers=3", "Head.logits_budget_mb=9"]
    machines[1] = collect(config(elsewhere, *given, *own), 1)
    assert preflight.compare(machines) == []


@pytest.mark.parametrize(
    "old, new, what",
    [
        ("ada_0003.png\t0", "ada_0003.png\t1", "labels, checksum"),
        ("images/bob/bob_0002.png\t1", "", "number of samples 4, 2 machines have 5"),
        ("bob_0002.png\t1", "bob_0002.png\t2", "number of classes 3, 2 machines have 2"),
        ("bob_0002", "bob_0001", "names of the samples, checksum"),
    ],
)
def test_another_list_of_images(machines, images, old, new, what):
    text = (images / "train.txt").read_text()
    (images / "other.txt").write_text(text.replace(old, new).strip())
    machines[1] = collect(config(images, name="other.txt"), 1)
    line = only_line(machines)
    assert f"DataLoader.Train.dataset: {what}" in line and line.endswith("give all machines the same data")


def test_data_that_cannot_be_read_is_a_problem_of_its_machine(machines, images):
    cfg = config(images)
    (images / "images/bob/bob_0001.png").unlink()
    machines[1] = collect(cfg, 1)
    assert "images/bob/bob_0001.png does not exist" in only_line(machines)


class Broken(Synthetic):
    """A user's own class with a mistake."""

    def __init__(self):
        raise ValueError("no such\ncolumn")


def test_a_data_set_that_raises_is_a_problem_of_its_machine(machines, images, capsys):
    own = "DataLoader.Train.dataset={name: 'tests.apps.supervise.test_preflight:Broken'}"
    broken = collect(load(None, [own, "Global.device=cpu", f"Global.output_dir={images}"]), 1)
    machines[1].data = broken.data
    assert only_line(machines).endswith(": DataLoader.Train.dataset: ValueError: no such column")
    assert "Traceback" in capsys.readouterr().err


def test_each_of_several_sets_is_compared(images):
    part = f"{{name: ImageFolder, folder: {images / 'images'}, size: [12, 10], head: own}}"
    pairs = f"{{name: ImagePairs, images: {images / 'images'}, num_pairs: 2, size: [12, 10]}}"
    given = [f"DataLoader.Train.dataset=[{part}, {part}]", f"DataLoader.Eval.dataset={pairs}"]
    facts = collect(load(None, [*given, "Global.device=cpu"]), 0)
    assert list(facts.data) == [
        *("DataLoader.Train.dataset.0", "DataLoader.Train.dataset.1"),
        "DataLoader.Eval.dataset",
    ]
    assert facts.data["DataLoader.Train.dataset.1"].samples == 5


def test_a_long_reading_is_said(images, monkeypatch):
    said = queue.Queue()
    monkeypatch.setattr(preflight, "_SLOW", 0.0)
    # Reading takes until it is said.
    monkeypatch.setattr(preflight, "build_dataset", lambda *_: pytest.fail(said.get(timeout=60)))
    with pytest.raises(pytest.fail.Exception) as ended:
        collect(config(images), 1, say=said.put)
    assert [ended.value.msg, *said.queue] == [
        "INFO reading DataLoader.Train.dataset to compare it with the other machines' ..."
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_a_loopback_address_among_others(machines, images, number):
    machines[number] = collect(config(images), number, address="127.0.1.1")
    line = only_line(machines, number)
    assert "address 127.0.1.1, which no other machine reaches" in line and "/etc/hosts" in line


def test_machines_on_one_host_may_all_have_a_loopback_address(machines):
    for facts in machines.values():
        facts.address = "127.0.0.1"
    assert preflight.compare(machines) == []


def test_the_address_of_another_machine(machines):
    machines[1].address = "10.0.0.0"
    assert "address 10.0.0.0, which machine 0 (node0) has too" in only_line(machines)


@pytest.mark.parametrize(
    "offsets, wrong, what",
    [
        ([0, 60], 1, "60 s ahead of"),
        ([0, -60], 1, "60 s behind"),
        ([0, 61, 60], 0, "61 s behind"),
        ([0, 4.9, -4.9], None, ""),
    ],
)
def test_a_clock_that_is_off(machines, offsets, wrong, what):
    facts = {
        number: machines[number].model_copy(update={"clock_offset": offset})
        for number, offset in enumerate(offsets)
    }
    if wrong is None:
        assert preflight.compare(facts) == []
    else:
        line = only_line(facts, wrong)
        assert f"clock {what} the others'" in line and "NTP" in line


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_memory_and_disk_that_cannot_hold_the_class_centres(images, kind):
    facts = {number: collect(config(images), number, machines=1) for number in range(2)}
    setattr(facts[1], f"free_{kind}", 1000)
    assert f"free {kind} 1e-06 GB, its class centres take " in only_line(facts)


def test_of_two_machines_the_first_is_right_and_of_three_the_majority(machines):
    machines[0].ranks = 8
    assert only_line(machines, 0).startswith("machine 0 (node0): ranks 8, 2 machines have 2")
    del machines[2]
    assert only_line(machines, 1).startswith("machine 1 (node1): ranks 2, machine 0 (node0) has 8")


def test_what_a_machine_sends_cannot_control_a_terminal(machines):
    sent = json.loads(machines[1].model_dump_json())
    sent.update(host="node\x1b[2J", paddle="3\n3")
    sent["config"]["Head.\x1b[31m"] = "\x07"
    sent["data"] = {"DataLoader.Train.dataset": {"error": "no\nsuch"}, "a\x1b": {"error": ""}}
    machines[1] = Facts.model_validate_json(json.dumps(sent))
    text = "".join([*preflight.compare(machines), preflight.format_table(machines).replace("\n", "")])
    assert text.isprintable() and "node\\x1b[2J" in text
