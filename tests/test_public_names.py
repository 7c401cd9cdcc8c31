"""Names that scripts, configs and installed commands of users rely on."""

import importlib
import inspect
from pathlib import Path

import pytest

import plsc
from tests.helpers.launch import run_python

NAMES = """
plsc:Entry plsc:Gallery plsc:__version__
plsc.cli:main plsc.config:load plsc.config:Config plsc.errors:UserError plsc.errors:MissingFileError
plsc.errors:CorruptImageError
 plsc.heads.softmax:SoftmaxHead plsc.heads.softmax:HeadOutput
plsc.heads.margins:Margin plsc.heads.margins:Target plsc.heads.margins:ArcFace plsc.heads.margins:CosFace
plsc.data.dataset:Dataset plsc.data.dataset:PairSet plsc.data.dataset:TemplatePairs
plsc.data.dataset:IdentificationSet
plsc.evaluation:verify plsc.evaluation:verify_pairs plsc.evaluation:identify plsc.evaluation:classify
plsc.evaluation:template_features
plsc.distributed:init plsc.distributed:rank plsc.distributed:world_size plsc.distributed:all_reduce
plsc.distributed:barrier
plsc.distributed:shard_index plsc.distributed:_c_allgather plsc.distributed:_c_reducescatter
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_a_public_name_can_be_imported(name):
    module, _, attribute = name.partition(":")
    assert getattr(importlib.import_module(module), attribute) is not None


def test_the_package_names_what_it_has():
    assert {"Entry", "Gallery", "__version__"} <= set(dir(plsc)) and "zlib" not in dir(plsc)


def test_paddle_is_imported_without_its_warning_of_ccache(tmp_path):
    """It gives it where no ccache is on the PATH."""
    code = "import warnings; import plsc; warnings.warn('No ccache found. Please be aware that')"
    assert run_python("-c", code, cwd=tmp_path).stderr == ""


@pytest.mark.parametrize("cls", ["Entry", "Gallery"])
def test_public_calls_say_their_types(cls):
    """py.typed promises it to type checkers."""
    calls = inspect.getmembers(getattr(plsc, cls), inspect.isroutine)
    own = [(name, inspect.signature(call)) for name, call in calls if not name.startswith("_")]
    assert own
    for name, signature in own:
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
        untyped = [parameter.name for parameter in parameters if parameter.annotation is parameter.empty]
        assert not untyped and signature.return_annotation is not signature.empty, name


def test_the_package_is_marked_as_typed():
    assert Path(plsc.__file__).with_name("py.typed").exists()
