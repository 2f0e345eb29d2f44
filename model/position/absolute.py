"""Schemes that add a vector to the embedding of each token."""

import math
from typing import Annotated

import torch
from pydantic import Field

from model.linear import Embedding
from model.position.base import Position, ladder, phase_device, phases
from settings import Positive, Single, Size


class Sinusoidal(Position):
    """(sin pθ_0, cos pθ_0, sin pθ_1, …) over the width of the model. Vaswani et al. 2017, section 3.5.

    Unless told otherwise it has the root mean square of the token embeddings it is added to. As printed (0.71)
    it would drown embeddings of standard deviation 0.02.
    """

    class Options(Position.Options):
        base: Annotated[Single, Field(gt=1)] = 10000.0
        """θ_i = base^(−2i / hidden_size), radians per token"""
        rms: Positive | None = None
        """root mean square of the added vectors; null: that of the token embeddings; 0.7071: as printed in the paper"""

        def check(self, config):
            if config.hidden_size % 2:
                raise ValueError(f"sinusoidal needs an even model.hidden_size, got {config.hidden_size}")

    shift_invariant = False

    def embedding(self, positions):
        phi = phases(positions, ladder(self.config.hidden_size, self.options.base, phase_device(positions)))
        waves = torch.stack((phi.sin(), phi.cos()), dim=-1).flatten(-2)
        scale = math.sqrt(2) * (self.options.rms or self.config.initializer_range)
        return (scale * waves).float().to(positions.device)


class Learned(Position):
    """A trained vector for each position. Devlin et al. 2019 (BERT); Radford et al. 2019 (GPT-2).

    Initialized as the token embeddings are, so that neither drowns the other. There is none past the table's end.
    """

    class Options(Position.Options):
        max_length: Size | None = None
        """rows of the table; a position past its end is an error. null: max_position_embeddings"""

        def check(self, config):
            length, needed = self.max_length, config.max_position_embeddings
            if length is not None and length < needed:
                raise ValueError(f"position.max_length {length} is less than max_position_embeddings {needed}")

    shift_invariant = False

    def __init__(self, config):
        super().__init__(config)
        self.max_length = self.options.max_length or config.max_position_embeddings
        self.table = Embedding(self.max_length, config.hidden_size)

    def embedding(self, positions):
        return self.table(positions.clamp(min=0))  # padding, at negative positions, is seen by nobody
