"""What an installation copies: every file of plsc/, not the modules alone."""

from tests.helpers.launch import ROOT, run_python


def files(folder):
    """The files below a folder, without what Python and compilers leave there."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")]
    return {path.relative_to(folder).as_posix() for path in found}


def test_every_file_is_copied(tmp_path):
    run_python(
        "setup.py", "--quiet", "build_py", "--build-lib", tmp_path, cwd=ROOT, PYTHONDONTWRITEBYTECODE="1"
    )
    copied = files(tmp_path / "plsc")
    assert "apps/serve/page.html" in copied and "py.typed" in copied
    assert copied == files(ROOT / "plsc")


def test_an_editable_install_adds_the_clone_to_pythons_path():
    """Then plsc is also found in the folder above a clone, which is called plsc itself. With any other layout
    setuptools adds a finder, which comes after the folders of Python's path, where the clone counts as a
    namespace package."""
    program = (
        "import setuptools\nfrom distutils.core import run_setup\n"
        "print(run_setup('setup.py', stop_after='init').package_dir)"
    )
    assert run_python("-c", program, cwd=ROOT).stdout == "{'': '.'}\n"
