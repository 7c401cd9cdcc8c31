"""Keep files small enough to be read, and the repository small enough to be cloned."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 500
MOST_BYTES = 500_000
SOURCES = (".py", ".cpp", ".h")


def tracked_files() -> list[Path]:
    """List the files that git tracks."""
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in git.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_large_file_is_tracked():
    large = [str(path.relative_to(ROOT)) for path in tracked_files() if path.stat().st_size > MOST_BYTES]
    assert not large, f"above {MOST_BYTES:,} bytes: {', '.join(large)}"


def test_no_source_file_is_too_long_to_read():
    long = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix in SOURCES and path.read_bytes().count(b"\n") > MOST_LINES
    ]
    assert not long, f"above {MOST_LINES} lines: {', '.join(long)}"
