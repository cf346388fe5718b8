"""Cuts between modules, and the layouts of programs that make no others.

What may be cut stands here, since the command line names it before torch is needed.
"""

from typing import Literal

CutAt = Literal["operators", "modules", "layers", "blocks"]
"""What stages may divide.

``modules`` are the model's children and those of its lists and Sequentials, as torchtitan and
DeepSpeed divide them; ``layers`` those of a decoder, as Megatron does. ``blocks`` are the operators
that come again and again in any model.
"""
