"""Dropout that a seed fixes, however the model is cut (page `train_mnist`).

What `torch.manual_seed` fixes depends on the device. CPU cores share one generator, so what each
worker draws depends on which thread comes first. So do two shares of one GPU. Whole GPUs have a
generator each: a seed and a schedule fix what they draw, but other micro-batches, another draw.
"""

import torch
from torch import Tensor, nn

from mpcourse.memory.checkpointing import refuse_other_draws


class ReproducibleDropout(nn.Module):
    """Dropout with a generator of its own: the same seed drops the same values everywhere.

    It draws on the host, one number per value, in the order of the samples: cut into micro-batches
    that come in order, the draws are those of the uncut mini-batch. The price is that the mask has
    to be copied to a GPU.

    Args:
        p: The share of values that become zero, from 0 to below 1; the others grow by 1 / (1 - p).
        seed: Where the generator begins. Layers with equal seeds drop equal places.
    """

    def __init__(self, p: float = 0.5, *, seed: int) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"p is from 0 to below 1; got {p!r}")
        super().__init__()
        self.p = p
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, values: Tensor) -> Tensor:
        """Drop in training; hand the values on unchanged else."""
        if not self.training or self.p == 0:
            return values
        refuse_other_draws()
        # not of the default type: other types draw other numbers
        numbers = torch.rand(
            values.shape, generator=self.generator, dtype=torch.float32, device="cpu"
        )
        kept = numbers >= self.p
        return values * kept.to(values.device, non_blocking=True) / (1 - self.p)

    def get_extra_state(self) -> Tensor:
        """The generator's state: a `state_dict` remembers how far the draws have come."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Go on where the saved model was."""
        self.generator.set_state(state.cpu())

    def _replicate_for_data_parallel(self) -> "ReproducibleDropout":
        """What `replicate` calls: replicas would draw from one generator at the same time."""
        if self.training and self.p > 0:
            raise RuntimeError(
                "no seed fixes what replicas of a ReproducibleDropout draw: they share a generator "
                "and run at the same time; use nn.Dropout in DataParallel, or a Pipeline"
            )
        return super()._replicate_for_data_parallel()

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"
