"""The kernels of a vendor's list in force on the stand-in: Paddle refuses each operator that is not in it, by
its name."""

import pytest

from plsc.distributed.kernel_tables import listed
from plsc.distributed.kinds import AS_KIND
from tests.standin.test_bits import losses, run_cases
from tests.standin.test_commands import train

pytestmark = pytest.mark.slow

NETWORKS = ["IResNet18", "MobileFaceNet", "FaceViT_tiny"]
HEADS = [
    "dist_softmax",
    "dist_sphereface",
    "dist_combined",
    "dist_adaface",
    "dist_magface",
    "dist_curricularface",
    "dist_intertopk",
]
OTHERS = ["sampled", "several sets", "sub-centres", "AdamW, clipped", "SyncBN", "accumulated, recomputed"]


def kernels(folder, *without):
    """Write the list of npu less some operators -> the environment in which the stand-in has these
    kernels."""
    table = {name: dtypes for name, dtypes in listed("npu").kernels.items() if name not in without}
    path = folder / "kernels"
    path.write_text("".join(f"{name} {' '.join(dtypes)}\n" for name, dtypes in table.items()))
    return {"STANDIN_KERNELS": str(path), AS_KIND: "npu"}


def test_no_operator_of_a_training_is_refused_by_the_kernels_of_npu(plugin, tmp_path):
    """From the first weights to the checkpoint."""
    names = [*NETWORKS, *HEADS, *OTHERS]
    folders = run_cases("standin", tmp_path / "cards", 1, *names, **kernels(tmp_path), **plugin)
    assert all(len(losses(folders[name])) == 3 for name in names)


@pytest.mark.parametrize(
    ("fallback", "said"),
    [
        ("warn", "ERROR standin: there is no kernel for the operator conv2d_grad, nor one of the CPU"),
        ("refuse", "ERROR Global.fallback: refuse, but standin has no kernel for these operators of a step"),
    ],
)
def test_a_kernel_that_is_taken_from_the_list_ends_the_run_in_a_line(fallback, said, plugin, tmp_path):
    env = {**kernels(tmp_path, "conv2d_grad"), **plugin}
    overrides = ["Global.device=standin", f"Global.fallback={fallback}"]
    code, text = train(tmp_path, *overrides, check=False, **env)
    assert code == 2 and said in text and "Traceback" not in text
    assert "conv2d_grad (float32): 4 backward" in text
