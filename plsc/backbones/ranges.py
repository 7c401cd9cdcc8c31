"""Annotations for numbers that several networks take from a config. Each names a range.

A config checks a class's keys by its arguments' annotations (plsc/utils/section.py) before it builds
anything.

>>> class Net:
...     def __init__(self, dropout: Share = 0.0): ...
"""

from typing import Annotated

from pydantic import Field

Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=10_000)]
Depths = list[Annotated[int, Field(ge=0, le=1000)]]
Widths = list[Annotated[int, Field(ge=1, le=2**20)]]
