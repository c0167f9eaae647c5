"""Train and evaluate, the MNIST sample, and the small nets of the pages (page `train_mnist`).

`loop` takes a plain model or a pipeline; `in_memory` is for pages that train many small nets.
"""

from mpcourse.training.in_memory import LOSS, RATE, TUNING_RATE, Data, train
from mpcourse.training.loop import Epoch, Evaluation, evaluate, evaluation_mode, train_epoch
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net, deep_conv_net, lenet_300_100, linear_net, mnist_net
