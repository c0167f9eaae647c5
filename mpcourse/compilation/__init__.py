"""Is there a compiler for torch.compile to call, and what does torch.export refuse?

XLA needs a torch of its own: `xla` runs it and reads its recording, `xla_step` is what runs there.
"""

from mpcourse.compilation.export import export_refusal
from mpcourse.compilation.toolchain import compiler_problem, cpp_compiler, quietly
