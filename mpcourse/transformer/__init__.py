"""A small decoder-only transformer (page `a_transformer`): to read, to train, to cut.

`decoder` is the network; `text` and `learning` train it on the course's own prose; `generation`
lets it write; `tied` keeps two copies of one embedding equal.
"""

from mpcourse.transformer.decoder import Attention, Block, Decoder, attention_weights
from mpcourse.transformer.generation import Cache, cached_logits, generate
from mpcourse.transformer.learning import (
    next_token_loss,
    text_loss,
    train_decoder,
    unsplit_step,
    windows,
)
from mpcourse.transformer.text import Text, counted_losses, load_prose
from mpcourse.transformer.tied import sum_tied_gradients, with_two_copies
