"""What the package says of itself: its names, its types, and nothing on the screen."""

import inspect

import pytest

import plsc
from tests.helpers.launch import run_python


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
