"""A margin in a config: a user's own by its import path, its options by its annotations, and
what is refused."""

import pytest

from plsc.config import ConfigError, load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.heads.build import build_head, build_margin
from plsc.heads.optimizer import Momentum
from tests.heads.ways import without_kernels

MODULE = """
from __future__ import annotations
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Rule

class Cut(CosFace):
    def __init__(self, margin: float = 0.1, power: float = 1.0, steps: int = 1, sides: tuple[int, ...] = ()):
        super().__init__(margin)
        self.power, self.steps, self.sides = power, steps, sides

class Needy(Cut):
    def __init__(self, depth: float):
        super().__init__(depth)

class Broken(CosFace):
    def __call__(self, cos_N, norm_N):
        return None

class Idle(Rule):
    def update_rows(self, name, value, moments, grad, update):
        value = value - update.lr * grad
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "plsc_own_margin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def refused(*overrides):
    with pytest.raises(ConfigError) as error:
        load(None, list(overrides))
    return str(error.value).splitlines()


def test_a_users_class_is_built_with_its_options_as_annotated():
    options = ["Head.power=2", "Head.steps=3", "Head.sides=[1, 2]"]
    cfg = load(None, ["Head.name=plsc_own_margin:Cut", "Head.margin=0.2", *options]).Head
    margin = build_margin(cfg)
    assert (margin.margin, margin.power, margin.steps, margin.sides) == (0.2, 2.0, 3, (1, 2))
    assert cfg.sharded and cfg.kind == "plsc_own_margin:Cut"


def test_its_config_is_printed_and_read_again(tmp_path):
    data = "DataLoader.Train.dataset={name: Synthetic, num_classes: 20}"
    cfg = load(None, ["Head.name=plsc_own_margin:Cut", "Head.sides=[1, 2]", "Head.sample_rate=0.5", data])
    (tmp_path / "again.yaml").write_text(cfg.to_yaml())
    again = load(tmp_path / "again.yaml")
    assert again == cfg and build_margin(again.Head).sides == (1, 2)
    assert "head     plsc_own_margin:Cut, " in Entry(cfg).dry_run()
    for wrong in ("Head.name=plsc_own_margin:Broken", "Optimizer.head={name: 'plsc_own_margin:Idle'}"):
        with pytest.raises(UserError, match="returned a NoneType|changes no row"):
            Entry(load(None, [wrong, data])).dry_run()


@without_kernels
@pytest.mark.parametrize(
    "overrides, line",
    [
        (["Head.powr=1"], "Head.powr: unknown key, did you mean 'power'?"),
        (["Head.steps=1.5"], "Head.steps: must be a valid integer (got 1.5)"),
        (["Head.name=plsc_own_margin:Needy"], "Head.depth: is required"),
        (
            ["Head.name=plsc_own_margin:Needy", "Head.depth=1", "Head.margin=0.3"],
            (
                "Head.margin: has no meaning with plsc_own_margin:Needy, only with arcface, dist_arcface, "
                "cosface, dist_cosface, sphereface, dist_sphereface, adaface, dist_adaface, curricularface, "
                "dist_curricularface (got 0.3)"
            ),
        ),
        (
            ["Head.name=arcface", "Head.sample_rate=0.1"],
            "Head.sample_rate: has no meaning with arcface, only with a sharded head (dist_...) (got 0.1)",
        ),
        (
            ["Head.bank_dtype=bfloat16"],
            "Head.bank_dtype: has no meaning with the bank device, only with host and disk (got 'bfloat16')",
        ),
        (
            ["Head.name=magface", "Head.low=20", "Head.high=10"],
            "Head.high: must be above low, 20 (got 10)",
        ),
        *(
            (
                [f"Head.name={name}", f"Head.{key}=28.6"],
                (
                    f"Head.{key}: must be at most 1.57 (pi / 2): angles are in radians, not in degrees "
                    "(got 28.6)"
                ),
            )
            for name, key in (("arcface", "margin"), ("combined", "margin2"), ("magface", "high_margin"))
        ),
        (["Head.name=magface", "Head.low=120"], "Head.high: must be above low, 120 (got 110.0)"),
    ],
)
def test_refused(overrides, line):
    if not any("name=" in override for override in overrides):
        overrides = ["Head.name=plsc_own_margin:Cut", *overrides]
    (found,) = refused(*overrides)
    assert found.endswith(f": {line}")


def test_constants_of_a_file_fall_away_with_another_name_by_override(tmp_path):
    (tmp_path / "a.yaml").write_text("Head: {name: magface, low: 5, scale: 32}")
    assert load(tmp_path / "a.yaml", ["Head.name=arcface"]) == load(None, ["Head={name: arcface, scale: 32}"])


@without_kernels
def test_the_head_computes_in_the_dtype_of_amp_unless_it_has_its_own():
    def dtype(*overrides):
        cfg = load(None, overrides)
        head = build_head(cfg.Head, Momentum(), 2, 2, seed=0, amp=cfg.Global.amp)
        return head.spec.compute_dtype

    assert dtype() == dtype("Head.name=softmax") == dtype("Head.bank=disk") == "float32"
    assert dtype("Global.amp=float16") == "float32"
    assert dtype("Global.amp=bfloat16") == dtype("Head.compute_dtype=bfloat16") == "bfloat16"
    assert dtype("Global.amp=bfloat16", "Head.compute_dtype=float32") == "float32"
