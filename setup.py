"""Installation, by `pip install -e ".[cpu,test]"`.

Paddle is an extra and never a requirement: its GPU builds are other packages (paddlepaddle-gpu), and a
requirement on paddlepaddle would put the CPU build over the one that you have.

The kernels (plsc/native) are optional: without a compiler the package installs and works, slower on CPUs.
They are linked against nothing and built for every processor of the architecture; which instructions are used
is decided when they run. They call no function of Python's, so one wheel serves every version of it.
PLSC_KERNELS=0 leaves them out: the wheel is then for every machine.

The distribution is called plsc-sharded, since plsc on PyPI is PaddlePaddle's own program; the package is
`plsc`.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "plsc" / "utils" / "version.py").read_text(), re.MULTILINE
).group(1)

KERNELS = Extension(
    "plsc.native._native",
    sources=sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("plsc/native/**/*.cpp")),
    depends=sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("plsc/native/**/*.h")),
    include_dirs=["."],
    extra_compile_args=[
        "-O3",
        "-std=gnu++17",
        "-fopenmp-simd",  # `omp simd` only: threads come from the OpenMP runtime that Paddle brings
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fvisibility=hidden",
    ],
    optional=True,
    py_limited_api=True,
)
WITH_KERNELS = os.environ.get("PLSC_KERNELS") != "0"

setup(
    name="plsc-sharded",
    version=VERSION,
    description="Training classifiers whose classes do not fit one device, on PaddlePaddle",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["PaddlePaddle", "face recognition", "large-scale classification", "ArcFace", "Partial FC"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["plsc", "plsc.*"]),
    # With it an editable install adds this folder to Python's path, and without it a finder, which comes too
    # late in the folder above a clone: the clone, `plsc`, is found there first, as a namespace package.
    package_dir={"": "."},
    ext_modules=[KERNELS] if WITH_KERNELS else [],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if WITH_KERNELS else {},
    package_data={
        "": ["*.jinja"],
        "plsc.apps.serve": ["page.html"],
        "plsc": ["py.typed"],
        **{f"plsc.native{part}": ["*.cpp", "*.h"] for part in ("", ".evaluation", ".heads", ".layers")},
    },
    install_requires=[
        "jinja2>=3",  # the report's page
        "matplotlib>=3.5",  # the report's pictures, and the fonts of the default data set
        "numpy",
        "opencv-python-headless>=4.8",
        "pydantic>=2.7",
        "pyyaml",
        # imported by Paddle; Paddle 2.6 does not ask for it, and a venv of Python 3.12 on has none
        "setuptools",
        "tqdm",
        "visualdl",
    ],
    extras_require={
        "cpu": ["paddlepaddle>=2.6.2"],
        "export": ["onnx", "onnxruntime", "paddle2onnx==2.1.*; python_version < '3.13'"],
        "milvus": [
            "milvus-lite>=3.2",
            "pymilvus>=3.0",
        ],  # the second is for servers, too; the first for a file
        "loggers": ["tensorboardX", "wandb"],
        "serve": ["fastapi>=0.110", "python-multipart>=0.0.13", "uvicorn>=0.29"],
        "test": [
            "httpx",  # the test client of the service
            "ml_dtypes",  # onnxruntime.quantization imports it, and does not ask for it
            "pytest",
            "pytest-xdist>=3.8",
            "safetensors",  # the other reader of checkpoints
        ],
    },
    entry_points={"console_scripts": ["plsc = plsc.cli:main"]},
)
