"""Generate text, with and without a cache of keys and values (page `a_transformer`).

Without a cache every new token costs a forward of the whole text. Keys and values of earlier tokens
do not change, because no token looks ahead: with a cache only the new token is computed.
"""

import torch
from torch import Tensor

from mpcourse.transformer.decoder import Decoder, attention_weights
from mpcourse.transformer.parallel_layers import ColumnParallelLinear


class Cache:
    """Keys and values of the tokens so far: a pair (N, heads, T, head_width) for each block."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def extend(self, block: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' keys and values; return those of all tokens."""
        if block == len(self.pairs):
            self.pairs.append((key, value))
        else:
            old_key, old_value = self.pairs[block]
            self.pairs[block] = torch.cat([old_key, key], 2), torch.cat([old_value, value], 2)
        return self.pairs[block]

    @property
    def length(self) -> int:
        """How many tokens it has seen."""
        return self.pairs[-1][0].shape[2] if self.pairs else 0

    @property
    def num_bytes(self) -> int:
        """What it holds: 2 * layers * N * T * width numbers."""
        return sum(t.numel() * t.element_size() for pair in self.pairs for t in pair)


def cached_logits(model: Decoder, tokens: Tensor, cache: Cache) -> Tensor:
    """Logits (N, T, vocabulary) of T new tokens (N, T) that stand behind those in the cache."""
    x = model.embedding(tokens, start=cache.length)
    for index, block in enumerate(model.blocks):
        query, key, value = block.attention.project(block.norm_1(x))
        keys, values = cache.extend(index, key, value)
        x = x + block.dropout_1(block.attention.join(attention_weights(query, keys) @ values))
        x = x + block.dropout_2(block.mlp(block.norm_2(x)))
    return model.head(x)


@torch.no_grad()
def generate(
    model: Decoder,
    tokens: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    cache: Cache | None = None,
) -> Tensor:
    """Write on, token by token.

    Args:
        model: An uncut one. It writes in evaluation mode, and each module gets its mode back.
        tokens: (N, T), at least one token; without a cache the last ones that fit count.
        count: How many tokens to add, at least 0.
        temperature: 0 takes the likeliest token, 1 draws from the model's own probabilities.
        seed: Fixes the draws.
        cache: An empty one, to compute each token once; the whole text must fit the context then.

    Returns:
        (N, T + count), int64.

    Raises:
        ValueError: There is nothing to write on from, count or temperature is negative, the cache
            is not empty, a text with a cache is longer than the context, or the model is cut.
    """
    # here, for it brings torchvision: seconds in each process that only cuts a decoder
    from mpcourse.training.loop import evaluation_mode

    if isinstance(model.head.output, ColumnParallelLinear):
        raise ValueError("each rank of a cut decoder scores its own tokens: take the uncut one")
    context = model.embedding.positions.num_embeddings
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        given = tuple(tokens.shape)
        raise ValueError(f"tokens are (N, T) with at least one token to write on from; got {given}")
    for name, value in {"count": count, "temperature": temperature}.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}; it has to be at least 0")
    if cache is not None and cache.length:
        raise ValueError(f"the cache holds {cache.length} tokens already; give an empty one")
    if cache is not None and tokens.shape[1] + count - 1 > context:
        raise ValueError(
            f"{tokens.shape[1]} tokens and {count} more: with a cache, positions cannot move, and "
            f"the context holds {context}"
        )
    generator = torch.Generator(tokens.device).manual_seed(seed)
    new = tokens
    with evaluation_mode(model):
        for _ in range(count):
            if cache is None:
                logits = model(tokens[:, -context:])
            else:
                logits = cached_logits(model, new, cache)
            new = _choose(logits[:, -1], temperature, generator)
            tokens = torch.cat([tokens, new], dim=1)
    return tokens


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
