"""Build and install the package: `pip install -e ".[cpu,test]"`.

Paddle is an extra and never a requirement. Its GPU builds are separate packages (paddlepaddle-gpu), and a
requirement on paddlepaddle would install the CPU build over them.

The kernels (plsc/native) are optional. Without a compiler the package installs and works, but it is slower on
CPUs. The kernels are linked against nothing, and they are built for every processor of the architecture. They
choose their instructions at run time. They call no function of Python, so one wheel serves every version of
Python. PLSC_KERNELS=0 builds a wheel without kernels, which runs on every machine.

The distribution is called plsc-sharded, since plsc on PyPI is PaddlePaddle's own program. The package is
called `plsc`.
"""

import os
import re
import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "plsc" / "utils" / "version.py").read_text(), re.MULTILINE
).group(1)

SOURCES, HEADERS = (
    sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"plsc/native/**/*.{kind}"))
    for kind in ("cpp", "h")
)
CHECKSUM = zlib.crc32(b"".join((ROOT / path).read_bytes() for path in (*SOURCES, *HEADERS)))

KERNELS = Extension(
    "plsc.native._native",
    sources=SOURCES,
    depends=HEADERS,
    define_macros=[("PLSC_SOURCES", f"{CHECKSUM}u")],
    include_dirs=["."],
    extra_compile_args=[
        "-O3",
        "-std=gnu++17",
        "-fopenmp-simd",  # only `omp simd`, since threads come from Paddle's OpenMP runtime
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
    # With this line, an editable install adds this folder to Python's path. Without it, the install adds a
    # finder. In the folder above a clone named `plsc`, Python would then find the clone first, as a namespace
    # package.
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
        "jinja2>=3",  # for the report's page
        "matplotlib>=3.5",  # for the report's pictures, and for the fonts of the default data set
        "numpy",
        "opencv-python-headless>=4.8",
        "pydantic>=2.7",
        "pyyaml",
        # Paddle imports it. Paddle 2.6 does not require it, and a new environment of Python 3.12 or later
        # does not contain it.
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
        ],  # milvus-lite stores a file. pymilvus also connects to a server
        "loggers": ["tensorboardX", "wandb"],
        "serve": ["fastapi>=0.110", "python-multipart>=0.0.13", "uvicorn>=0.29"],
        "test": [
            "httpx",  # for the test client of the service
            "ml_dtypes",  # onnxruntime.quantization imports it, but does not require it
            "pytest",
            "pytest-xdist>=3.8",
            "safetensors",  # to check that it can read checkpoints
        ],
    },
    entry_points={"console_scripts": ["plsc = plsc.cli:main"]},
)
