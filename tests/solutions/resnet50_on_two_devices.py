"""Solutions: a split ResNet50, the share in use, the best cut by time and under a limit."""

import torch
from torchvision.models.resnet import Bottleneck, ResNet


class MySplitResNet50(ResNet):
    """The inherited layers stay under their own names, so torchvision's weights fit.

    Each layer with parameters is moved once. The pictures go to the first device, the features to
    the second, and between pooling and `fc` the two empty dimensions are flattened away.
    """

    def __init__(self, first, second, num_classes=1000):
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=num_classes)
        self.first, self.second = first, second
        for part in (self.conv1, self.bn1, self.layer1, self.layer2):
            part.to(first)
        for part in (self.layer3, self.layer4, self.fc):
            part.to(second)

    def forward(self, images):
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images.to(self.first)))))
        features = self.layer2(self.layer1(stem))
        features = self.layer4(self.layer3(features.to(self.second)))
        return self.fc(torch.flatten(self.avgpool(features), 1))


def my_cut_by_time(forward, backward):
    """Try every cut, and keep the one whose busier device has the least work.

    A device does the forward and the backward of its blocks, so both are added up first. Both
    devices need a block, so k runs from 1 to one less than there are. Stopping when half of the
    work is reached can miss the better neighbour.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return min(range(1, len(both)), key=lambda k: max(sum(both[:k]), sum(both[k:])))


def my_cut_within(forward, backward, crossing, limit):
    """The same among the cuts that are allowed.

    The output crosses in the forward and a gradient of its size in the backward, so a step sends
    twice what `crossing` says. The list begins with the cut after the first block, which is k = 1.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    allowed = [k for k in range(1, len(both)) if 2 * crossing[k - 1] <= limit]
    return min(allowed, key=lambda k: max(sum(both[:k]), sum(both[k:])), default=None)


def my_used_share(timeline):
    """Add up what is computed, and divide by what all devices could have computed.

    A copy keeps a queue busy and computes nothing, so it is left out above the line. Below the
    line it stays: the step lasts as long as it does. `1 - timeline.bubble_fraction` counts every
    event as work.
    """
    work = sum(event.duration for event in timeline.events if event.action != "copy")
    return work / (timeline.num_devices * timeline.makespan)
