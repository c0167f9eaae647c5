"""One model in several forms, and what each of them saves (page `compilation`).

| module      | holds                                                              |
|-------------|--------------------------------------------------------------------|
| `toolchain` | is there a compiler for torch.compile to call?                     |
| `forms`     | eager, torch.export, torch.compile                                 |
| `compare`   | their answers, sizes, start-up and latencies                       |
| `shapes`    | how often torch.compile compiles when the shape changes            |

XLA needs a torch of its own: `xla` runs it and reads its recording, `xla_step` is what runs there.
"""

from mpcourse.compilation.compare import (
    FormReport,
    compare_forms,
    forms_table,
)
from mpcourse.compilation.forms import (
    FORMS,
    Form,
    as_eager,
    by_compile,
    by_export,
    export_program,
    export_refusal,
    usable_forms,
)
from mpcourse.compilation.shapes import CountingBackend, count_compiles
from mpcourse.compilation.toolchain import (
    CompilerMissing,
    compiler_problem,
    cpp_compiler,
    quietly,
)
