"""One model in several forms, and what each of them saves (page `compilation`).

| module      | holds                                                              |
|-------------|--------------------------------------------------------------------|
| `toolchain` | is there a compiler for torch.compile to call?                     |
| `forms`     | eager, TorchScript (legacy), torch.export, torch.compile           |
| `archive`   | what a file of torch.export may hold before torch reads it         |
| `compare`   | their answers, sizes, start-up and latencies                       |
| `shapes`    | how often torch.compile compiles when the shape changes            |

XLA needs a torch of its own: `xla` runs it or reads its recording, `xla_step` is what runs there.
"""

from mpcourse.compilation.compare import (
    FormReport,
    compare_forms,
    forms_table,
    start,
)
from mpcourse.compilation.forms import (
    FORMS,
    Form,
    as_eager,
    by_compile,
    by_export,
    by_torchscript,
    export_program,
    export_refusal,
    load_exported,
    usable_forms,
)
from mpcourse.compilation.shapes import CountingBackend, count_compiles
from mpcourse.compilation.toolchain import (
    CompilerMissing,
    compiler_problem,
    cpp_compiler,
    quietly,
)
from mpcourse.compilation.xla import count_operations, xla_run
