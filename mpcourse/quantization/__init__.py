"""Weights and inputs as 8-bit integers (pages `quantization`, `few_bits`).

    quantized = to_int8(model, calibrate(model, batches))   # static; without ranges: dynamic

| module        | holds                                                                     |
|---------------|---------------------------------------------------------------------------|
| `affine`      | scale and zero_point, quantize and dequantize, per tensor and per channel |
| `product`     | int8 times int8 with int32 sums                                           |
| `linear`      | a Linear layer that multiplies in int8                                    |
| `calibration` | observers: the range of each layer's inputs                               |
| `convert`     | whole models to int8                                                      |
| `fake`        | quantization-aware training                                               |
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
from mpcourse.quantization.convert import to_int8
from mpcourse.quantization.fake import (
    FakeQuantizedLinear,
    fake_quantize,
    prepare_qat,
    round_straight_through,
)
from mpcourse.quantization.linear import QuantizedLinear
from mpcourse.quantization.product import int8_matmul
