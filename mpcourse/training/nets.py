"""The small networks of the pages, for digits of 28 x 28 pixels.

Pages `split_a_model`, `train_mnist` and `pruning` to `quantization`.

They live apart from `splits`, which is about cutting a model: nothing here knows of devices.
"""

from collections import OrderedDict

from torch import nn


def lenet_300_100() -> nn.Sequential:
    """LeNet-300-100, 784-300-100-10: 266,200 weights in three Linear layers.

    Takes images of shape (N, 1, 28, 28) to outputs of shape (N, 10). It is the network on which
    most papers on pruning show their first figure.

    Source: LeCun et al., 1998; the figures on pruning from Han et al., 2015, arXiv:1506.02626.
    """
    return linear_net(300, 100)


def linear_net(first: int, second: int) -> nn.Sequential:
    """Three Linear layers with ReLUs between them, 784-first-second-10, by name."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(784, first),
            relu1=nn.ReLU(),
            fc2=nn.Linear(first, second),
            relu2=nn.ReLU(),
            fc3=nn.Linear(second, 10),
        )
    )


def mnist_net() -> nn.Sequential:
    """The net of the MNIST pages, 784-128-64-10, as a Sequential that can be cut anywhere."""
    return linear_net(128, 64)


def conv_net() -> nn.Sequential:
    """Two 3x3 convolutions and two Linear layers, for images of shape (N, 1, 28, 28).

    The pooling leaves 3x3 pixels of 64 channels, so the first Linear layer has 576 inputs.
    """
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 32, 3),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            relu2=nn.ReLU(),
            pool=nn.AvgPool2d(8),
            flatten=nn.Flatten(),
            fc1=nn.Linear(576, 100),
            relu3=nn.ReLU(),
            fc2=nn.Linear(100, 10),
        )
    )


def deep_conv_net() -> nn.Sequential:
    """Eight convolutions in eight blocks of much the same work, then a head; cut between any two.

    For images of shape (N, 1, 28, 28). The first block reads every other pixel and is cheap, the
    fifth has half the work of the others; 11 million multiply-adds a sample in all. There is no
    batch norm, so the net gives the same gradients whether or not a batch is cut up.
    """
    widths = (1, 32, 32, 32, 32, 64, 64, 64, 64)
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(1, 9):
        stride = 2 if index == 1 else 1
        conv = nn.Conv2d(widths[index - 1], widths[index], 3, stride, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")  # no batch norm mends the scale
        block = nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU()))
        if index in (4, 8):  # from 14 x 14 to 7 x 7, and to 3 x 3
            block.add_module("pool", nn.MaxPool2d(2))
        blocks[f"block{index}"] = block
    blocks["head"] = nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(64 * 9, 10)))
    return nn.Sequential(blocks)
