"""Shard files of arcface_torch, Partial FC v1 and PLSC, written after their published layouts: the matrices
that went in come out."""

import json
import os
import pickle

import numpy as np
import paddle
import pytest

from plsc.apps.migrate.shards import Gathered, find_shards
from plsc.errors import UserError
from plsc.utils.sharding import split
from tests.apps.migrate.paddle_files import tensor_bytes
from tests.apps.migrate.torch_files import numbers, write_torch

CLASSES, SIZE = 11, 4
CENTRES, MOMENTUM = numbers(CLASSES, SIZE, seed=1), numbers(CLASSES, SIZE, seed=2)
BIAS, BIAS_MOMENTUM = numbers(CLASSES, seed=3), numbers(CLASSES, seed=4)
CEILINGS = {
    1: [(0, 11)],
    2: [(0, 6), (6, 11)],
    3: [(0, 4), (4, 8), (8, 11)],
    4: [(0, 3), (3, 6), (6, 9), (9, 11)],
}


def arcface_torch(folder, ranks=3, momentum=True, centres=CENTRES):
    """train_v2.py with save_all_states: the network's momentum before the head's."""
    for rank, (start, stop) in enumerate(split(len(centres), ranks)):
        arrays = {"weight": centres[start:stop]}
        if momentum:
            arrays.update({"m0": numbers(2, 2), "m1": MOMENTUM[start:stop]})

        def whole(state):
            buffers = (
                {0: {"momentum_buffer": state.pop("m0")}, 1: {"momentum_buffer": state.pop("m1")}}
                if momentum
                else {}
            )
            groups = [{"lr": 0.1, "params": [0]}, {"lr": 0.1, "params": [1]}]
            return {
                "epoch": 3,
                "global_step": 99,
                "state_dict_backbone": {},
                "state_dict_softmax_fc": state,
                "state_optimizer": {"state": buffers, "param_groups": groups},
                "state_lr_scheduler": {"last_epoch": 3},
            }

        write_torch(folder / f"checkpoint_gpu_{rank}.pt", arrays, wrap=whole)


def arcface_torch_before(folder, ranks=3):
    """partial_fc.py's PartialFC with a sample rate below 1: the momentum is the head's own."""
    for rank, (start, stop) in enumerate(split(CLASSES, ranks)):
        arrays = {
            "weight": CENTRES[start:stop],
            "weight_mom": MOMENTUM[start:stop],
            "weight_activated": numbers(2, SIZE),
        }
        write_torch(
            folder / f"checkpoint_gpu_{rank}.pt", arrays, wrap=lambda state: {"state_dict_softmax_fc": state}
        )


def partial_fc(folder, ranks=3, name="rank_{}"):
    for rank, (start, stop) in enumerate(split(CLASSES, ranks)):
        for end, matrix in (("", CENTRES), ("_mom", MOMENTUM)):
            path = folder / f"{name.format(rank)}_softmax_weight{end}.pt"
            write_torch(path, {"a": matrix[start:stop]}, wrap=lambda state: state["a"])


def partial_fc_before(folder, ranks=3):
    partial_fc(folder, ranks, "rank:{}")


def plsc_2_4(folder, ranks=3, prefix="latest"):
    paddle.save({"stem.weight": paddle.ones([2])}, str(folder / f"{prefix}.pdparams"))
    for rank, (start, stop) in enumerate(split(CLASSES, ranks)):
        weight, moment = paddle.to_tensor(CENTRES[start:stop]), paddle.to_tensor(MOMENTUM[start:stop])
        name = f"dist@partialfc@rank@{rank:05d}.w"
        weight.name = name
        paddle.save({"head.weight": weight}, str(folder / f"{prefix}_rank{rank}.pdparams"))
        groups = [{"params": [name], "lr": 0.1, "is_distributed": True}]
        paddle.save(
            {"state": {name: {"exp_avg": moment}}, "param_groups": groups},
            str(folder / f"{prefix}_rank{rank}.pdopt"),
        )


def _plsc_0_x(folder, ranks, write, params="", opt=""):
    for rank, (start, stop) in enumerate(CEILINGS[ranks]):
        stem = str(folder / f"dist@arcface@rank@{rank:05d}")
        write(f"{stem}.w_0{params}", CENTRES[start:stop].T)
        write(f"{stem}.w_0_velocity_0{opt}", MOMENTUM[start:stop].T)
        write(f"{stem}.b_0{params}", BIAS[start:stop])
        write(f"{stem}.b_0_velocity_0{opt}", BIAS_MOMENTUM[start:stop])
    (folder / "fc_0.w_0").write_bytes(tensor_bytes(numbers(3)))
    meta = {"pretrain_nranks": ranks, "emb_dim": SIZE, "num_classes": CLASSES}
    (folder / "meta.json").write_text(json.dumps(meta))


def plsc_0_1(folder, ranks=3):
    def write(path, array):
        with open(path, "wb") as file:
            file.write(tensor_bytes(array))

    _plsc_0_x(folder, ranks, write)


def plsc_2_2(folder, ranks=3):
    _plsc_0_x(
        folder, ranks, lambda path, array: paddle.save(paddle.to_tensor(array), path), ".pdparam", ".pdopt"
    )


class _Lod:
    """Pickled as Paddle 2.0 pickles a LoDTensor."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return eval, ("data", {"data": self.array})


def plsc_0_2(folder, ranks=3):
    def write(path, array):
        with open(path, "wb") as file:
            pickle.dump(_Lod(np.ascontiguousarray(array)), file, 2)

    _plsc_0_x(folder, ranks, write, ".pdparam", ".pdopt")


WRITERS = {
    arcface_torch: "arcface_torch",
    arcface_torch_before: "arcface_torch",
    partial_fc: "Partial FC v1",
    partial_fc_before: "Partial FC v1",
    plsc_2_4: "PLSC 2.4",
    plsc_0_1: "PLSC 0.x",
    plsc_0_2: "PLSC 0.x",
    plsc_2_2: "PLSC 0.x",
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_matrices_come_out_equal(tmp_path, write, ranks):
    write(tmp_path, ranks)
    shards = find_shards([str(tmp_path)])
    assert shards.layout.name == WRITERS[write] and len(shards.files) == ranks
    gathered = Gathered(shards)
    bias = {"bias": BIAS, "bias_momentum": BIAS_MOMENTUM} if WRITERS[write] == "PLSC 0.x" else {}
    wanted = {"centres": CENTRES, "momentum": MOMENTUM, **bias}
    assert gathered.head.arrays.keys() == wanted.keys()
    for name, matrix in wanted.items():
        parts = [gathered.head.read(name, start, stop) for start, stop in gathered.ranges]
        assert all(part.dtype == np.float32 and part.flags.c_contiguous for part in parts)
        assert np.concatenate(parts).tobytes() == matrix.tobytes()


def test_ten_ranks_in_the_order_of_their_numbers(tmp_path):
    centres = numbers(23, SIZE)
    arcface_torch(tmp_path, 12, momentum=False, centres=centres)
    gathered = Gathered(find_shards([str(tmp_path)]))
    assert gathered.ranges == split(23, 12) and list(gathered.head.arrays) == ["centres"]
    assert np.array_equal(
        np.concatenate([gathered.head.read("centres", *edges) for edges in gathered.ranges]), centres
    )


def test_half_precision_is_widened(tmp_path):
    for rank, array in enumerate((np.float16([[1, 2]]), np.array([[0x3F80, 0xC000]], np.uint16))):
        write_torch(tmp_path / f"rank_{rank}_softmax_weight.pt", {"a": array}, wrap=lambda state: state["a"])
    head = Gathered(find_shards([str(tmp_path)])).head
    assert head.read("centres", 0, 1).tolist() == [[1, 2]] and head.read("centres", 1, 2).tolist() == [
        [1, -2]
    ]


# ---- what does not fit together


def refusal(*sources, **options):
    with pytest.raises(UserError) as raised:
        Gathered(find_shards([str(source) for source in sources]), **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_rank_is_named(tmp_path):
    partial_fc(tmp_path)
    os.remove(tmp_path / "rank_1_softmax_weight.pt")
    assert refusal(tmp_path) == (
        f"{tmp_path}: the file of rank 1 is missing; the next that is there is {tmp_path}/rank_2_softmax_weight.pt"
    )


def test_the_last_rank_missing(tmp_path):
    partial_fc(tmp_path)
    os.remove(tmp_path / "rank_2_softmax_weight.pt")
    found = Gathered(
        find_shards([str(tmp_path)])
    )  # 4 and 4 classes look like all of 8: nothing in the files tells
    assert found.ranges == [(0, 4), (4, 8)]
    assert refusal(tmp_path, num_classes=11) == (
        f"{tmp_path}/rank_0_softmax_weight.pt: the 2 ranks have 8 classes together, not 11"
    )
    (tmp_path / "b").mkdir()
    plsc_0_1(tmp_path / "b")
    os.remove(tmp_path / "b" / "dist@arcface@rank@00002.w_0")
    assert refusal(tmp_path / "b") == f"{tmp_path}/b/meta.json: says 3 ranks, there are files of 2"


def test_sizes_that_no_such_program_cuts(tmp_path):
    arcface_torch(tmp_path, 3)
    write_torch(
        tmp_path / "checkpoint_gpu_1.pt",
        {"weight": numbers(9, 4)},
        wrap=lambda state: {"state_dict_softmax_fc": state},
    )
    assert refusal(tmp_path).startswith(
        f"{tmp_path}/checkpoint_gpu_1.pt: holds centres, {tmp_path}/checkpoint_gpu_0.pt"
    )
    for rank, count in enumerate((4, 9)):
        path = tmp_path / f"rank_{rank}_softmax_weight.pt"
        write_torch(path, {"a": numbers(count, 4)}, wrap=lambda state: state["a"])
    first = tmp_path / "rank_0_softmax_weight.pt"
    assert refusal(first, tmp_path / "rank_1_softmax_weight.pt") == (
        f"{first}: has 4 classes; of 13 on 2 ranks Partial FC v1 gives it 7: a rank's file is missing or of another run"
    )


def test_other_widths_kinds_and_contents(tmp_path):
    paths = [tmp_path / f"rank_{rank}_softmax_weight.pt" for rank in range(2)]
    for array, said in (
        (numbers(4, 3), f"has centres of 3 numbers, {paths[0]} of 4"),
        (numbers(4), "centres: must be 2 axes of float32, float16 or bfloat16 (got float32 [4])"),
        (
            numbers(4, 4, dtype="f8"),
            "centres: must be 2 axes of float32, float16 or bfloat16 (got float64 [4, 4])",
        ),
    ):
        for path, value in zip(paths, (numbers(4, 4), array)):
            write_torch(path, {"a": value}, wrap=lambda state: state["a"])
        assert refusal(tmp_path) == f"{paths[1]}: {said}"
    write_torch(tmp_path / "rank_1_softmax_weight.pt", {"a": numbers(4, 4)})
    assert refusal(tmp_path).endswith("(got OrderedDict)")
    write_torch(paths[1], {"a": numbers(4, 4)}, wrap=lambda state: state["a"])
    write_torch(
        tmp_path / "rank_1_softmax_weight_mom.pt", {"a": numbers(3, 4)}, wrap=lambda state: state["a"]
    )
    assert refusal(tmp_path) == f"{paths[1]}: momentum is [3, 4], its centres are [4, 4]"


def test_no_shards_several_runs_and_twice_the_same(tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert refusal(tmp_path) == (
        f"{tmp_path}: has no shard files of arcface_torch, Partial FC v1, PLSC 2.4, PLSC 0.x"
    )
    assert (
        refusal(tmp_path / "a.txt")
        == f"{tmp_path}/a.txt: is not named as a rank's main file of any layout; give the folder"
    )
    assert refusal(tmp_path / "b") == f"{tmp_path}/b: there is no such file or folder"
    plsc_2_4(tmp_path, 2)
    plsc_2_4(tmp_path, 2, prefix="best")
    assert refusal(tmp_path).endswith(
        f"best_rank0.pdparams, {tmp_path}/latest_rank0.pdparams); name the files of one"
    )
    named = [str(tmp_path / f"best_rank{rank}.pdparams") for rank in range(2)]
    assert Gathered(find_shards(named)).ranges == [(0, 6), (6, 11)]
    assert (
        refusal(*named, named[0])
        == f"{named[0]}: rank 0 is there twice, the other is {named[0]}; keep one of them"
    )


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("keep", [0, 1, 30, -1])
def test_cut_off_files_are_one_line(tmp_path, write, keep):
    write(tmp_path, 2)
    path = find_shards([str(tmp_path)]).files[1]
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data[:keep])
    assert refusal(tmp_path).startswith(f"{path}: is no ")


def test_what_asks_for_more_than_tensors_is_refused(tmp_path):
    (tmp_path / "a_rank0.pdparams").write_bytes(pickle.dumps({"a": os.mkdir}))
    assert "refused: the file asks for" in refusal(tmp_path)
    (tmp_path / "a_rank0.pdparams").write_bytes(pickle.dumps({"a": numbers(2, 2), "b": numbers(2, 2)}))
    assert refusal(tmp_path).endswith(
        "a_rank0.pdparams: has 2 tensors; the file of a rank has one, its classes"
    )
    write_torch(tmp_path / "checkpoint_gpu_0.pt", {"a": numbers(2)})
    said = refusal(tmp_path / "checkpoint_gpu_0.pt")
    assert said.endswith("checkpoint_gpu_0.pt: has no 'state_dict_softmax_fc', so it holds no classes")


def test_an_unclear_momentum_is_named(tmp_path):
    plsc_0_1(tmp_path, 1)
    (tmp_path / "dist@arcface@rank@00000.w_0_velocity_1").write_bytes(tensor_bytes(numbers(2)))
    assert refusal(tmp_path).endswith(
        "its momentum may be any of dist@arcface@rank@00000.w_0_velocity_0, dist@arcface@rank@00000.w_0_velocity_1; "
        "keep one of them"
    )


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_altered_files_give_one_line_or_a_matrix(tmp_path, write):
    """No checksum is in Paddle's files, so numbers may change; but nothing else may happen."""
    write(tmp_path, 2)
    rng, paths = (
        np.random.default_rng(0),
        sorted(path for path in tmp_path.iterdir() if "fc_0" not in path.name),
    )
    for path in paths:
        whole = path.read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            data[rng.integers(len(data))] = rng.integers(256)
            path.write_bytes(data)
            try:
                gathered = Gathered(find_shards([str(tmp_path)]))
                assert gathered.ranges == CEILINGS[2] and gathered.head.read("centres", 0, 6).shape == (
                    6,
                    SIZE,
                )
            except UserError as error:
                assert "\n" not in str(error)
        path.write_bytes(whole)
