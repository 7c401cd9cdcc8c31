"""OpenCV prints no lines of its own, whether it is imported before plsc or after."""

import pytest

from tests.helpers.launch import run_python


@pytest.mark.parametrize("imports", ["import cv2, plsc", "import plsc, cv2"])
@pytest.mark.parametrize(("variable", "level"), [(None, "0"), ("WARNING", "3")])
def test_opencv_is_silent_unless_the_user_wants_its_log(tmp_path, imports, variable, level):
    owner = "cv2 if hasattr(cv2, 'getLogLevel') else cv2.utils.logging"  # OpenCV 4, OpenCV 5
    program = f"{imports}; print(({owner}).getLogLevel())"
    assert run_python("-c", program, cwd=tmp_path, OPENCV_LOG_LEVEL=variable).stdout.strip() == level
