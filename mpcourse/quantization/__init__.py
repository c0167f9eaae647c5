"""Weights and inputs as 8-bit integers (page `quantize_and_compile`).

    quantized = to_int8(model, calibrate(model, batches))   # static; without ranges: dynamic
    torch.save(quantized.state_dict(), path)
    load_int8(fresh_model, torch.load(path, weights_only=True))

| module        | holds                                                                     |
|---------------|---------------------------------------------------------------------------|
| `affine`      | scale and zero_point, quantize and dequantize, per tensor and per channel |
| `errors`      | what rounding costs                                                       |
| `product`     | int8 times int8 with int32 sums                                           |
| `linear`      | a Linear layer that multiplies in int8                                    |
| `calibration` | observers: the range of each layer's inputs                               |
| `convert`     | whole models to int8, and back from a file                                |
| `fake`        | quantization-aware training                                               |
| `library`     | torchao, the maintained library                                           |
| `legacy`      | torch.ao, the old API                                                     |
"""

from mpcourse.quantization.affine import (
    Quantized,
    choose_qparams,
    dequantize,
    integer_range,
    quantize,
    quantize_tensor,
    range_of,
)
from mpcourse.quantization.calibration import MinMaxObserver, calibrate, linear_layers
from mpcourse.quantization.convert import load_int8, to_int8
from mpcourse.quantization.errors import RoundingError, rounding_error, with_outlier
from mpcourse.quantization.fake import (
    FakeQuantizedLinear,
    fake_quantize,
    prepare_qat,
    round_straight_through,
)
from mpcourse.quantization.legacy import to_int8_by_torch_ao
from mpcourse.quantization.library import (
    TorchaoMissing,
    load_by_torchao,
    to_int8_by_torchao,
    torchao_version,
)
from mpcourse.quantization.linear import QuantizedLinear
from mpcourse.quantization.product import int8_matmul
