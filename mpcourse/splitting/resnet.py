"""ResNet50 over two devices: one after the other, and pipelined in the forward.

Pages `resnet50_on_two_devices` and `pipeline`.

Source: PyTorch's tutorial on single-machine model parallelism, and torchvision/models/resnet.py.
Unlike the tutorial's, these register no parameter twice: their `state_dict` is torchvision's.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from mpcourse.devices.devices import DeviceLike, capture_modes, modes_set
from mpcourse.schedules.actions import check_count
from mpcourse.splitting.splits import two_devices

FRONT = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")
BACK = ("layer3", "layer4", "avgpool")


class ModelParallelResNet50(ResNet):
    """ResNet50 with its first half on one device and its second half on another.

    `devices` are two, `get_devices(2)` when `None`.
    """

    def __init__(
        self, devices: Sequence[DeviceLike] | None = None, num_classes: int = 1000
    ) -> None:
        devices = two_devices(devices)
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=num_classes)
        self.devices = devices
        for name in FRONT:
            getattr(self, name).to(devices[0].device)
        for name in (*BACK, "fc"):
            getattr(self, name).to(devices[1].device)

    def front(self, images: torch.Tensor) -> torch.Tensor:
        """The half on the first device: (N, 3, H, W) to (N, 512, H / 8, W / 8)."""
        images = images.to(self.devices[0].device)
        for name in FRONT:
            images = getattr(self, name)(images)
        return images

    def back(self, features: torch.Tensor) -> torch.Tensor:
        """The half on the second device: to (N, num_classes)."""
        features = features.to(self.devices[1].device)
        for name in BACK:
            features = getattr(self, name)(features)
        return self.fc(torch.flatten(features, 1))  # flatten also takes channels_last

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Run one half after the other, each in its device's worker: one of them always waits."""
        features = self._submit(0, self.front, images).result()
        return self._submit(1, self.back, features).result()

    def _submit(self, index: int, half: Any, value: torch.Tensor) -> Any:
        """Hand one half to its device, with the caller's modes."""
        device = self.devices[index]
        modes = capture_modes([device])

        def run(value: torch.Tensor) -> torch.Tensor:
            with modes_set(modes, device.device.type):
                return half(value)

        return device.submit(run, value)  # an argument: its memory is kept until it has been read

    def stages(self) -> list[nn.Sequential]:
        """The two halves as modules for a `Pipeline`; they share this model's parameters."""
        front = nn.Sequential(*(getattr(self, name) for name in FRONT))
        back = nn.Sequential(*(getattr(self, name) for name in BACK), nn.Flatten(), self.fc)
        return [front, back]


class PipelineParallelResNet50(ModelParallelResNet50):
    """The same, with the batch cut up so that both devices work at the same time in the forward.

    The backward is left to autograd: with two GPUs each has a thread of its own there, but for CPU
    tensors one thread does it all. `Pipeline` is what overlaps the backward everywhere.

    A piece has `split_size` samples; the last may have fewer.
    """

    def __init__(
        self,
        split_size: int = 20,
        devices: Sequence[DeviceLike] | None = None,
        num_classes: int = 1000,
    ) -> None:
        check_count("split_size", split_size)
        super().__init__(devices, num_classes)
        self.split_size = split_size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """While the second device runs its half on one piece, the first runs the next piece."""
        pieces = iter(images.split(self.split_size))
        features = self._submit(0, self.front, next(pieces)).result()
        outputs = []
        for piece in pieces:
            outputs.append(self._submit(1, self.back, features))
            features = self._submit(0, self.front, piece).result()
        outputs.append(self._submit(1, self.back, features))
        return torch.cat([output.result() for output in outputs])


def resnet_blocks(model: ResNet) -> nn.Sequential:
    """A ResNet as a Sequential that can be cut between any two of its blocks.

    They are the stem (to the first pooling), one block per residual block, and the head, made of
    the model's own modules. Inside a block there is no cut: two tensors are in flight there, and
    ReLUs work in place.
    """
    parts = {"stem": nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(model, name)):
            parts[f"{name}_{index}"] = block
    parts["head"] = nn.Sequential(model.avgpool, nn.Flatten(), model.fc)
    return nn.Sequential(OrderedDict(parts))


def thin_resnet50(width: int = 32, num_classes: int = 1000) -> nn.Sequential:
    """ResNet50 with every layer `width / 64` as wide, as `resnet_blocks` cuts it.

    Half as wide is a quarter of the weights and of the work. What a micro-batch costs besides its
    samples goes with the weights, so larger images of a thin net show a pipeline's gain on a CPU
    in a second or two.
    """
    check_count("width", width)
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    parts: dict[str, nn.Module] = {"stem": nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))}
    channels = width
    for layer, count in enumerate((3, 4, 6, 3)):
        inner = width * 2**layer
        outer = inner * Bottleneck.expansion
        for index in range(count):
            stride = 2 if layer > 0 and index == 0 else 1
            skip = None
            if index == 0:
                change = nn.Conv2d(channels, outer, 1, stride, bias=False)
                skip = nn.Sequential(change, nn.BatchNorm2d(outer))
            parts[f"layer{layer + 1}_{index}"] = Bottleneck(channels, inner, stride, skip)
            channels = outer
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    parts["head"] = nn.Sequential(*head)
    model = nn.Sequential(OrderedDict(parts))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # as torchvision's ResNet begins
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
