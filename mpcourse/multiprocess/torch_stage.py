"""torch's pipeline stage, as it works in all torch versions of this course."""

from torch import distributed
from torch.distributed import pipelining


class PipelineStage(pipelining.PipelineStage):
    """`torch.distributed.pipelining.PipelineStage`, over gloo in torch 2.9 and 2.10, too.

    There, neighbours greet each other before the first step, with 8 bytes where 4 are expected, and
    a process greets itself if it has two stages in a row. NCCL lets both pass and needs the
    greeting to connect; gloo ends the process, and needs none.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[distributed.P2POp]:
        """The greeting; later versions of torch do not ask for it."""
        if distributed.get_backend(self.group) == "gloo":
            return []
        return super()._get_init_p2p_neighbors_ops()
