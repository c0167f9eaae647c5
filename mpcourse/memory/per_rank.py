"""Bytes of one rank that trains a transformer, by arithmetic alone: sharded, recomputed.

Pages `does_it_fit` and `sharded_data_parallel`. Weights and gradients are in bfloat16, 2 bytes a
number; Adam keeps 12 bytes a number in float32: its copy of the weights and two averages.

Source: Rajbhandari et al., 2020 (ZeRO), arXiv:1910.02054, for the states; Korthikanti et al.,
2022, arXiv:2205.05198, for the activations, with an attention that keeps no matrix of scores.
"""

from dataclasses import dataclass

WEIGHT, GRADIENT, OPTIMIZER = 2, 2, 12  # bytes for each parameter
BLOCK = 34  # bytes a block saves for each token and each number of its width
BLOCK_INPUT = 2  # of these, what a block that is recomputed keeps


@dataclass(frozen=True)
class LanguageModel:
    """The sizes of a decoder that decide about its bytes."""

    parameters: float
    layers: int
    width: int  # numbers that stand for one token between two blocks
    context: int  # tokens of a sample


MODELS = {
    "GPT-2 small": LanguageModel(124e6, 12, 768, 1024),
    "GPT-2 XL": LanguageModel(1.5e9, 48, 1600, 1024),
    "Llama 2 7B": LanguageModel(6.74e9, 32, 4096, 4096),
    "Llama 2 70B": LanguageModel(69e9, 80, 8192, 4096),
}
"""Real models, their sizes quoted from Radford et al., 2019 and Touvron et al., 2023."""


def bytes_per_rank(
    model: LanguageModel, *, batch: int, ranks: int = 1, stage: int = 0, recompute: bool = False
) -> dict[str, float]:
    """What one rank holds at the end of the forward, with room for all gradients.

    Args:
        model: Its sizes.
        batch: Samples on this rank.
        ranks: How many share the states; each has its own batch.
        stage: What is shared out, as ZeRO numbers it: 0 nothing, 1 the optimizer's state, 2 the
            gradients too, 3 the parameters too.
        recompute: Whether every block keeps its input alone and runs its forward again.

    Returns:
        Bytes by purpose: parameters, gradients, optimizer state, activations.

    Raises:
        ValueError: A number is out of range.
    """
    if min(batch, ranks) < 1:
        raise ValueError(f"batch and ranks have to be 1 or more; got {batch} and {ranks}")
    if stage not in range(4):
        raise ValueError(f"stage has to be 0, 1, 2 or 3; got {stage!r}")
    hidden = batch * model.context * model.width
    blocks = BLOCK * model.layers
    if recompute:
        blocks = BLOCK_INPUT * model.layers + BLOCK  # and one block that is run again
    return {
        "parameters": WEIGHT * model.parameters / (ranks if stage >= 3 else 1),
        "gradients": GRADIENT * model.parameters / (ranks if stage >= 2 else 1),
        "optimizer state": OPTIMIZER * model.parameters / (ranks if stage >= 1 else 1),
        "activations": float(blocks * hidden),
    }
