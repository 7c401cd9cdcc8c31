"""Rows that are stored elsewhere: the same numbers as in memory, bit for bit, read ahead or not, and there
and back through a checkpoint."""

import numpy as np
import paddle
import pytest

from plsc import native as kernels
from plsc.checkpoint.store import Checkpoint, Content, save
from plsc.errors import UserError
from plsc.heads import banks as banks_module
from plsc.heads.banks import build_bank, row_storage
from plsc.heads.banks import offloaded as offloaded_module
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import LARS, AdamW, Momentum
from plsc.heads.sampling import ClassShard
from plsc.native import bfloat16
from plsc.utils.preprocessing import Preprocessing

KINDS = [("host", "bfloat16"), ("disk", "float32"), ("disk", "bfloat16")]
C, D = 60, 8
RULES = {
    "momentum": Momentum(0.9, 1e-3),
    "nesterov": Momentum(0.9, 1e-3, nesterov=True),
    "adamw": AdamW(0.9, 0.999, 1e-8, 0.1),
    "lars": LARS(0.9, 1e-3, 0.02, 0.0),
}
every_rule = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    # Whole vectors are compared: without kernels, Paddle's ops take the remainder's roots with another last
    # bit.
    monkeypatch.setattr(offloaded_module, "_ROWS_AT_ONCE", 16)
    monkeypatch.setattr(offloaded_module, "_SPARE", 3)


def make(kind, dtype, folder, shard=None, **options):
    options = {"bias": True, "std": 0.5, "seed": 1, "rule": Momentum(0.9, 1e-2), **options}
    return build_bank(kind, dtype, folder, shard or ClassShard(C, 0, C), D, **options)


def train(
    folder,
    kind,
    dtype,
    rate=0.3,
    steps=8,
    plain=False,
    state=None,
    start=0,
    skip=None,
    ahead=True,
    seed=4,
    rule="momentum",
):
    """-> losses and the head."""
    options = {"bias": True} if plain else {"margin": ArcFace(0.3), "scale": 16.0}
    options = {**options, "sample_rate": rate, "rule": RULES[rule], "seed": seed}
    head = make_head(C, D, bank=kind, bank_dtype=dtype, bank_folder=folder, **options)
    if not ahead:
        head.bank.read_ahead = lambda draw, current: None
    for low in range(0, C if state else 0, 25):
        head.bank.load_rows(low, {name: rows[low : low + 25] for name, rows in state.items()})
    head.bank.updates = start
    losses = []
    for step in range(start, steps):
        rng = np.random.default_rng(step)
        emb = paddle.to_tensor(rng.standard_normal((6, D)), dtype="float32", stop_gradient=False)
        out = head(emb, paddle.to_tensor(rng.integers(0, 12, 6)), step)
        out.loss.backward()
        if step == skip:
            head.clear_gradients()
        else:
            head.update(0.1, step)
        losses.append(out.loss.item())
    return losses, head


def bits(head):
    return {name: np.array(rows[:]).tobytes() for name, rows in head.bank.state().items()}


@every_rule
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_float32_bank_on_disk_is_the_host_bank_bit_for_bit(rate, plain, rule, tmp_path, monkeypatch):
    if rate == 1:
        # They take rows in memory, and without sampling those on disk are not.
        monkeypatch.setenv("PLSC_KERNELS", "0")
    losses, host = train(tmp_path, "host", "float32", rate, plain=plain, skip=5, rule=rule)
    found, disk = train(tmp_path, "disk", "float32", rate, plain=plain, skip=5, rule=rule)
    assert found == losses and bits(disk) == bits(host)
    if kernels.library() and rate < 1:
        found, device = train(tmp_path, "device", "float32", rate, plain=plain, skip=5, rule=rule)
        assert found == losses and bits(device) == bits(host)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("skip", [None, 3])
def test_reading_ahead_changes_nothing(kind, dtype, skip, tmp_path):
    losses, head = train(tmp_path, kind, dtype, skip=skip)
    found, without = train(tmp_path, kind, dtype, skip=skip, ahead=False)
    assert found == losses and bits(without) == bits(head)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_a_new_bank_stores_nothing_and_an_update_its_rows_alone(kind, dtype, tmp_path):
    shard = ClassShard(90, 21, 81)
    bank, host = (make(*of, tmp_path, shard, bias=False) for of in ((kind, dtype), ("host", "float32")))
    every = np.arange(60)
    assert not len(bank._places.find(every)[0]) and not np.asarray(bank._storage[every]).any()
    drawn = host.state()["centres"]
    want = drawn if dtype == "float32" else bfloat16.nearest(drawn)
    assert np.array_equal(bank.state()["centres"][:], want)
    rows = np.array([0, 7, 59])
    selection = bank.select(rows)
    selection.set_gradient("centres", 0, 3, paddle.ones([3, D]))
    selection.update(0.1)
    state = {name: each[:] for name, each in bank.state().items()}
    assert np.array_equal(np.sort(bank._places.find(every)[0]), rows)
    others = np.delete(every, rows)
    assert np.array_equal(state["centres"][others], want[others]) and not state["momentum"][others].any()
    assert (state["centres"][rows] != want[rows]).all() and state["momentum"][rows].all()


def test_neither_holes_of_the_file_are_read_nor_centres_drawn_for_the_momentum(tmp_path, monkeypatch):
    read, drawn = [], []
    bank = make("disk", "bfloat16", tmp_path, bias=False)
    read_records, initial = row_storage.read_records, bank._initial
    monkeypatch.setattr(row_storage, "read_records", lambda *a: (read.append(len(a[1])), read_records(*a)))
    bank._initial = lambda rows: drawn.append(len(rows)) or initial(rows)
    selection = bank.select(np.array([0, 7, 59]))
    selection.set_gradient("centres", 0, 3, paddle.ones([3, D]))
    selection.update(0.1)
    bank._wait()
    assert (sum(read), drawn) == (0, [3])
    bank.state()["momentum"][:]
    assert (sum(read), drawn) == (3, [3])
    bank.state()["centres"][:]
    assert (sum(read), drawn) == (6, [3, C - 3])


def test_rows_of_the_next_step_are_read_before_it_begins(tmp_path):
    _, head = train(tmp_path, "disk", "float32")
    read, bank = [], head.bank
    bank._wait()
    load = bank.load
    bank.load = lambda rows, *args: (read.append(len(rows)), load(rows, *args))
    emb = paddle.to_tensor(np.ones((2, D)), dtype="float32", stop_gradient=False)
    head(emb, paddle.to_tensor([1, 1]), 8)
    assert read[0] <= 1  # the positive at most. The rest has been there
    bank._wait()
    assert len(read) == 2 and read[1] > 5  # of step 9


@every_rule
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_bfloat16_does_not_depend_on_where_it_rests(rate, rule, tmp_path):
    losses, host = train(tmp_path, "host", "bfloat16", rate, rule=rule)
    found, disk = train(tmp_path, "disk", "bfloat16", rate, rule=rule)
    plain, exact = train(tmp_path, "host", "float32", rate, rule=rule)
    assert found == losses and bits(disk) == bits(host)
    assert losses != plain and losses == pytest.approx(plain, rel=2e-2)
    for name, rows in exact.bank.state().items():
        stored = bfloat16.float32_of(np.array(host.bank.state()[name][:]))
        assert np.abs(stored - rows).max() < 4e-2 * np.abs(rows).max(), name


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_second_moment_as_bfloat16_is_never_negative(rate, tmp_path):
    _, head = train(tmp_path, "host", "bfloat16", rate, rule="adamw")
    moment2 = bfloat16.float32_of(np.array(head.bank.state()["moment2"][:]))
    assert (moment2 >= 0).all() and moment2.any() and not np.signbit(moment2).any()


@pytest.mark.parametrize("rule", ["momentum", "adamw"])
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_a_run_resumed_from_a_checkpoint_is_the_run_that_was_not_stopped(kind, dtype, rate, rule, tmp_path):
    losses, whole = train(tmp_path, kind, dtype, rate, rule=rule)
    _, half_way = train(tmp_path, kind, dtype, rate, steps=5, rule=rule)
    saved = checkpoint_of(half_way, tmp_path)
    resumed, head = train(tmp_path, kind, dtype, rate, state=saved.head(0, C), start=5, seed=4, rule=rule)
    assert resumed == losses[5:] and bits(head) == bits(whole)


def checkpoint_of(head, folder):
    content = Content(
        5, 1, {"backbone": {"arrays": {}}}, head.bank.state(), C, (0, C), config={},
        preprocessing=Preprocessing((3, 1, 1)),
    )  # fmt: skip
    return Checkpoint.open(save(folder / "checkpoints", content))


@pytest.mark.parametrize("to", [("device", "float32"), ("host", "float32"), *KINDS])
@pytest.mark.parametrize("since", [("device", "float32"), *KINDS])
def test_a_checkpoint_of_any_bank_goes_into_any_other(since, to, tmp_path):
    saved = checkpoint_of(train(tmp_path, *since, rule="adamw")[1], tmp_path)
    bank = make(*to, tmp_path, bias=False, rule=RULES["adamw"])
    for start, stop in ((0, 25), (25, 60)):
        bank.load_rows(start, saved.head(start, stop))
    for name, rows in bank.state().items():
        want, found = bfloat16.float32_of(saved.rows(name, 0, C)), bfloat16.float32_of(np.asarray(rows[:]))
        if to[1] == "bfloat16":
            want = bfloat16.float32_of(bfloat16.nearest(want))
        assert np.array_equal(found, want)


@pytest.mark.parametrize(("kind", "dtype"), [("device", "float32"), ("host", "float32"), *KINDS])
def test_arrays_that_are_not_loaded_keep_their_numbers(kind, dtype, tmp_path):
    bank = train(tmp_path, kind, dtype, plain=True)[1].bank
    before = {name: np.array(rows[:]) for name, rows in bank.state().items()}
    assert all(rows[5:40].any() for rows in before.values())
    bank.load_rows(5, {"centres": np.ones((35, D), np.float32)})
    after = {name: bfloat16.float32_of(np.asarray(rows[:])) for name, rows in bank.state().items()}
    assert (after["centres"][5:40] == 1).all()
    for name, rows in before.items():
        changed = slice(5, 40) if name == "centres" else slice(0, 0)
        kept = np.delete(np.arange(C), changed)
        assert np.array_equal(after[name][kept], bfloat16.float32_of(rows)[kept])


def test_a_failure_of_the_thread_reaches_the_step(tmp_path):
    _, head = train(tmp_path, "disk", "float32")
    head.bank._wait()
    head.bank._storage._file.truncate(100)
    with pytest.raises(EOFError):
        for step in range(9, 12):
            emb = paddle.to_tensor(np.ones((6, D)), dtype="float32", stop_gradient=False)
            head(emb, paddle.to_tensor([1] * 6), step).loss.backward()
            head.update(0.1, step)


def test_a_failure_of_the_thread_is_not_forgotten(tmp_path):
    """A save must not write what a failed step has left."""
    bank = make("disk", "float32", tmp_path)
    bank._queue(lambda: 1 / 0)
    for use in (bank.state, lambda: bank.select(None), bank.state):
        with pytest.raises(ZeroDivisionError):
            use()


@pytest.mark.parametrize("verb", ["update", "load_rows"])
def test_a_failed_write_of_all_rows_is_not_forgotten(verb, tmp_path, monkeypatch):
    """Some rows are then new and others old. A save must not write such centres."""
    head = make_head(C, D, ArcFace(0.5), bank="disk", bank_folder=tmp_path)
    emb = paddle.to_tensor(np.ones((6, D)), dtype="float32", stop_gradient=False)
    head(emb, paddle.to_tensor([1] * 6)).loss.backward()
    rows = {"centres": np.ones((C, D), np.float32)}

    def fail(*_):
        raise OSError("the disk has failed")

    monkeypatch.setattr(type(head.bank._storage), "__setitem__", fail)
    with pytest.raises(OSError, match="has failed"):
        head.update(0.1) if verb == "update" else head.bank.load_rows(0, rows)
    for use in (head.bank.state, lambda: head.bank.select(None), head.bank.state):
        with pytest.raises(OSError, match="has failed"):
            use()


def test_without_a_compiler_there_is_no_such_bank(tmp_path, monkeypatch):
    monkeypatch.setattr(banks_module, "compiled", lambda: None)
    for kind, dtype in KINDS:
        with pytest.raises(
            UserError, match=f"^Head.bank: {kind} with Head.bank_dtype={dtype} needs the compiled kernels; .*"
        ):
            make(kind, dtype, tmp_path)
    make("host", "float32", tmp_path)
