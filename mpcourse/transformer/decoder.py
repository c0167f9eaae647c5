"""A decoder-only transformer, written to be read and easy to cut.

Between blocks only one tensor flows, (N, T, width): a cut by layers sends nothing else. Inside a
block every matrix is a plain `nn.Linear`, and the number of heads is read off the tensors: whoever
puts fewer rows into `query`, `key` and `value` has fewer heads, and nothing else changes.
Source: the pre-norm layer of torch.nn.TransformerEncoderLayer with a causal mask, as in GPT-2.
"""

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """Tokens (N, T) -> (N, T, width): what a token is, plus where it stands."""

    def __init__(self, vocabulary: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Embed tokens of which the first stands at position `start`."""
        return self.tokens(tokens) + self.positions(self.places(tokens, start))

    def places(self, tokens: Tensor, start: int) -> Tensor:
        """The positions of the tokens; more than the context has are refused."""
        end, context = start + tokens.shape[1], self.positions.num_embeddings
        if end > context:
            raise ValueError(f"{end} tokens in a row; the context holds at most {context}")
        return torch.arange(start, end, device=tokens.device)


class Attention(nn.Module):
    """Causal self-attention with several heads, (N, T, width) -> (N, T, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        _check_heads(width, heads)
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Let every token take from itself and from those before it."""
        query, key, value = self.project(x)
        return self.join(attention_weights(query, key) @ value)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (N, heads, T, head_width)."""
        projected = (self.query(x), self.key(x), self.value(x))
        return tuple(p.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in projected)

    def join(self, mixed: Tensor) -> Tensor:
        """The heads' values (N, heads, T, head_width), side by side and through the output."""
        return self.output(mixed.transpose(1, 2).flatten(-2))


def attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """How much each token looks at itself and at those before it; a row sums to 1.

    Args:
        query: (N, heads, T, head_width), of the last T tokens.
        key: (N, heads, S, head_width), of all S >= T tokens.

    Returns:
        (N, heads, T, S), zero where a token would look ahead.
    """
    rows, columns = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    ahead = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
    ahead = ahead.triu(columns - rows + 1)
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)


class MLP(nn.Module):
    """Four times as wide inside, (N, T, width) -> (N, T, width), each token by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Widen, apply GELU, narrow."""
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then the MLP; each sees its input normed and adds to the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm_2, self.mlp = nn.LayerNorm(width), MLP(width)
        # two, for CommDebugMode of torch 2.11 fails on a module that is used twice
        self.dropout_1, self.dropout_2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the MLP, to the residual stream."""
        x = x + self.dropout_1(self.attention(self.norm_1(x)))
        return x + self.dropout_2(self.mlp(self.norm_2(x)))


class Head(nn.Module):
    """The last norm and the scores of every possible next token, (N, T, width) -> (N, T, V)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Score every possible next token."""
        return self.output(self.norm(x))


class Decoder(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary): at every place, scores of the next token.

    Args:
        vocabulary: How many tokens there are, at least 1.
        width: Numbers per token between the blocks; a multiple of `heads`.
        heads: Attention heads per block, at least 1.
        layers: Blocks, at least 0.
        context: The most tokens in a row, at least 1.
        tied: Whether the output weights are the embedding's: one tensor, used twice.
        dropout: Share of what attention and MLP add that is dropped in training.

    Raises:
        ValueError: A size is out of its range, or the heads do not divide the width.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        layers: int,
        context: int,
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check(vocabulary=vocabulary, width=width, heads=heads, layers=layers, context=context)
        self.embedding = Embedding(vocabulary, width, context)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.head = Head(vocabulary, width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if tied:
            self.head.output.weight = self.embedding.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Score, at every place, each token as the next one."""
        return self.head(self.blocks(self.embedding(tokens)))

    def as_sequential(self) -> nn.Sequential:
        """The same modules in a row: embedding, blocks, head. This is what can be cut."""
        return nn.Sequential(self.embedding, *self.blocks, self.head)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        least = 0 if name == "layers" else 1
        if size < least:
            raise ValueError(f"{name} is {size}; it has to be at least {least}")
    _check_heads(sizes["width"], sizes["heads"])


def _check_heads(width: int, heads: int) -> None:
    if heads < 1 or width % heads:
        raise ValueError(
            f"{heads} heads do not divide a width of {width}: "
            "each head takes the same number of columns"
        )
