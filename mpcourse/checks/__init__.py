"""The checks of the exercises, one module per page. `check_*` returns a `Verdict`.

Each check tries the attempt on cases that the page does not show, stops one that never returns,
and explains the wrong answers that people really give.
"""

from mpcourse.checks.a_transformer import (
    check_cache_bytes,
    check_causal,
    check_leak,
    check_silent_head,
    check_tied,
)
from mpcourse.checks.capstone import check_new_cut, check_pipeline_speedup
from mpcourse.checks.collectives import (
    check_deadlock,
    check_fit,
    check_ring,
    check_tree_and_ring,
)
from mpcourse.checks.compilation import check_graphs, check_one_graph, check_payback
from mpcourse.checks.cut_inside_a_layer import (
    check_block_bytes,
    check_cut_loss,
    check_mlp_parts,
    check_same,
    check_scores,
)
from mpcourse.checks.distributed_data_parallel import check_hooks, check_local_loss, check_shard
from mpcourse.checks.does_it_fit import (
    check_bytes_of_a_rank,
    check_extra_bytes,
    check_largest_batch,
    check_saved_bytes,
    check_slip,
)
from mpcourse.checks.int8_layers import check_int8_linear, check_rows
from mpcourse.checks.judged_plans import check_plan, plan_target
from mpcourse.checks.parallel_apply import (
    check_crossing,
    check_data_parallel,
    check_first_device,
    check_parallel_apply,
)
from mpcourse.checks.pipeline import (
    check_ceiling,
    check_cut_graph,
    check_pieces,
    check_split_size,
)
from mpcourse.checks.pruning import check_global_masks, check_remove, check_snip
from mpcourse.checks.quantization import check_fake, check_qparams
from mpcourse.checks.ranks_and_hosts import check_culprit, check_overlaps, check_resume
from mpcourse.checks.resnet50_on_two_devices import (
    check_cut_by_time,
    check_cut_within,
    check_split_resnet50,
    check_used_share,
)
from mpcourse.checks.scatter_and_gather import (
    check_gather,
    check_mean,
    check_scatter,
    check_scatter_nest,
)
from mpcourse.checks.schedules import (
    check_board,
    check_gpipe,
    check_one_f_one_b,
    check_split_backward,
    check_stuck,
)
from mpcourse.checks.sparse_training import check_cubic, check_keep, check_proximal, check_regrow
from mpcourse.checks.split_a_model import (
    check_parts,
    check_places,
    check_split,
    check_training_step,
)
from mpcourse.checks.start_here import check_idle, check_speedup, check_time, check_worker
from mpcourse.checks.torch_pipelining import check_columns, check_padded, check_partners
from mpcourse.checks.train_mnist import check_drift, check_evaluate, check_merged
from mpcourse.checks.verdict import Verdict
