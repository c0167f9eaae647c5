"""A small decoder-only transformer: to read, to train, to cut.

Pages `a_transformer` to `choose_a_layout`.

`decoder` is the network; `text` and `learning` train it on the course's own prose; `tied` keeps two
copies of one embedding equal. `parallel_layers` and `parallel_vocabulary` cut a layer over ranks
(`tensor_parallel_functions` has Megatron's f and g), `tensor_parallel` a whole decoder;
`ring_attention` and `cut_tokens` cut its tokens; `experts` puts many small MLPs in the place of
one, and `parallel_experts` spreads them over ranks; `messages` predicts and counts what is sent;
`performance_model` turns bytes and link speeds into the time of a step, `published` holds it
against papers.
"""

from mpcourse.transformer.cut_tokens import cut_tokens, ulysses_attention
from mpcourse.transformer.decoder import Attention, Block, Decoder, attention_weights
from mpcourse.transformer.experts import (
    Mixture,
    balance_loss,
    choose,
    with_experts,
    within_capacity,
)
from mpcourse.transformer.learning import (
    next_token_loss,
    text_loss,
    train_decoder,
    unsplit_step,
    windows,
)
from mpcourse.transformer.messages import Counted, Message, block_messages
from mpcourse.transformer.parallel_experts import (
    Exchange,
    ParallelMixture,
    average_gradients,
)
from mpcourse.transformer.parallel_layers import (
    ColumnParallelLinear,
    ParallelDropout,
    RowParallelLinear,
    own_part,
)
from mpcourse.transformer.parallel_vocabulary import (
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from mpcourse.transformer.performance_model import (
    Cluster,
    DecoderSizes,
    Layout,
    held_bytes,
    layouts,
    step_seconds,
)
from mpcourse.transformer.published import (
    BAND,
    HOPPER,
    PEAKS,
    PUBLISHED,
    RECENT,
    ROOM,
    Published,
    spread_of_ratios,
)
from mpcourse.transformer.ring_attention import merge, own_places, ring_attention
from mpcourse.transformer.tensor_parallel import cut_inside, sum_whole_gradients
from mpcourse.transformer.tensor_parallel_functions import copy_to_ranks, reduce_from_ranks
from mpcourse.transformer.text import Text, counted_losses, load_prose
from mpcourse.transformer.tied import sum_tied_gradients, with_two_copies
