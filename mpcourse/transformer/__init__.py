"""A small decoder-only transformer (page `a_transformer`): to read, to train, to cut.

`decoder` is the network. Its numbers are those of torch's own layers.
"""

from mpcourse.transformer.decoder import Attention, Block, Decoder, attention_weights
