"""The course's pictures: data in, SVG or matplotlib axes out. Nothing here measures or shows."""

from mpcourse.figures.attention import attention_picture
from mpcourse.figures.curves import (
    plot_cuts,
    plot_gaps,
    plot_over_sparsity,
    plot_over_steps,
)
from mpcourse.figures.held import held_picture
from mpcourse.figures.live_bytes import plot_live, stages_picture
from mpcourse.figures.mesh import places_picture
from mpcourse.figures.mlp_cut import mlp_cut_picture, token_cut_picture
from mpcourse.figures.ring import ring_picture
from mpcourse.figures.routes import routes_picture
from mpcourse.figures.scatter import scatter_picture
from mpcourse.figures.smaller_nets import SparsityStudy, sparsity_picture
from mpcourse.figures.split_curve import SplitCurve, split_curve_picture, split_picture
from mpcourse.figures.stacked_bars import LayoutTime, byte_bars, layouts_picture
from mpcourse.figures.timelines import memory_picture, timeline_picture
from mpcourse.figures.transfers import transfers_picture
