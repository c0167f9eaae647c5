"""The course's pictures: data in, SVG or matplotlib axes out. Nothing here measures or shows."""

from mpcourse.figures.a_transformer import attention_picture
from mpcourse.figures.byte_bars import byte_bars
from mpcourse.figures.collectives import plot_sent, ring_picture
from mpcourse.figures.curves import plot_times
from mpcourse.figures.cut_inside_a_layer import mlp_cut_picture, places_picture
from mpcourse.figures.cuts import plot_cuts
from mpcourse.figures.layouts import LayoutTime, layouts_picture
from mpcourse.figures.marks import LABELS, MARKERS, device_colour, device_letter
from mpcourse.figures.memory import memory_picture
from mpcourse.figures.mesh import mesh_picture
from mpcourse.figures.pruned import SparsityStudy, sparsity_picture
from mpcourse.figures.quantized import BitsStudy, Rounded, bits_picture
from mpcourse.figures.scatter import scatter_picture
from mpcourse.figures.source import show_source
from mpcourse.figures.sparsity import plot_over_sparsity
from mpcourse.figures.speedups import Gains, gains_picture
from mpcourse.figures.split_curve import SplitCurve, split_curve_picture, split_picture
from mpcourse.figures.startup import plot_savings
from mpcourse.figures.steps import plot_over_steps
from mpcourse.figures.timelines import timeline_picture
from mpcourse.figures.training import plot_digits, plot_gaps, seeds_picture
from mpcourse.figures.transfers import transfers_picture
