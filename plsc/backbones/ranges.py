"""Name the ranges of numbers that several classes take from a config: annotations of their arguments.

A config checks the keys of a class by its annotations (plsc/utils/section.py), before anything is made.

>>> class Net:
...     def __init__(self, dropout: Share = 0.0): ...
"""

from typing import Annotated

from pydantic import Field

Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=10_000)]
Depths = list[Annotated[int, Field(ge=0, le=1000)]]
Widths = list[Annotated[int, Field(ge=1, le=2**20)]]
