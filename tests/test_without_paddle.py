"""What works without Paddle, whose import takes seconds. One interpreter runs it all, from the lightest to
the heaviest."""

from tests.helpers.launch import run_python

STEPS = """
import sys

def check(*names):
    assert not {"paddle", *names} & sys.modules.keys(), [name for name in names if name in sys.modules]

import plsc.utils.logging, plsc.training.metrics, plsc.training.progress
check("visualdl", "matplotlib")

from plsc.config import load
config = load({"Global.epochs": 2, "Model.embedding_size": 64, "Head.margin": 0.4, "Global.device": "cpu"})
config.to_yaml()
check()

import plsc.apps.restart
check()

import numpy as np
from plsc.evaluation import verify
verify(np.eye(4), np.eye(4)[[0, 1, 3, 2]], np.arange(4) < 2)
check()

import plsc.apps.gallery.command, plsc.apps.faces.command, plsc.evaluation.gallery_threshold
check()
"""


def test_configs_facts_and_galleries_need_no_paddle(tmp_path):
    run_python("-c", STEPS, cwd=tmp_path, PLSC_KERNELS=None)
