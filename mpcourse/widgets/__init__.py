"""Thin ipywidgets shells around the figures; the only package that knows ipywidgets.

Each widget shows a picture by setting `HTML.value`: no output is captured, so the pages hold under
nbval, and both ipywidgets 7.7 (Colab) and 8 have all that is used. The text form of each widget
says what it shows, for readers on a page without a kernel.
"""

from mpcourse.widgets.board import ScheduleBoard, board_picture
from mpcourse.widgets.capstone import pruning_explorer, pruning_view
from mpcourse.widgets.cut_inside_a_layer import layout_explorer, layout_view
from mpcourse.widgets.does_it_fit import fit_explorer, fit_view
from mpcourse.widgets.explorer import Explorer, picture_slider, slider
from mpcourse.widgets.pipeline import SplitExplorer, split_explorer
from mpcourse.widgets.prediction import Comparison, Prediction, predict
from mpcourse.widgets.progress import Progress, progress
from mpcourse.widgets.pruning import sparsity_explorer, sparsity_study
from mpcourse.widgets.quantization import bits_explorer, bits_study
from mpcourse.widgets.scatter_and_gather import scatter_explorer
from mpcourse.widgets.schedules import schedule_explorer, schedule_view
from mpcourse.widgets.start_here import idle_explorer
from mpcourse.widgets.torch_pipelining import mesh_explorer
