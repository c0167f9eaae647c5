"""Every line that only a GPU runs, in one table, with the test that runs its logic without one.

The stand-in is `tests/pretend_cuda.py`. Where a branch is new, gone or renamed, a test here fails.
"""

import ast
import json
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from pretend_cuda import pretend_cuda
from torch import distributed

TESTS = Path(__file__).parent
PACKAGE, PAGES = TESTS.parent / "mpcourse", TESTS.parent / "notebooks"
ASKED = {"cuda", "cudnn", "is_cuda", "record_stream", "record_event", "wait_event", "wait_stream"}
CLOCK = "perf_counter"  # a GPU may still be at work when it is read
TIMED = ("compilation", "data_parallel", "devices", "multiprocess", "transformer")

LANES, CROSSINGS = "devices/test_gpu_lanes.py", "devices/test_crossings.py"
RANKS, MEMORY = "multiprocess/test_gpu_ranks.py", "memory/test_gpu_memory.py"
DEVICES, MOVES = "devices/test_devices.py", "data_parallel/test_gpu_moves.py"
BOTH_WAYS = f"{LANES}::test_work_waits_for_its_caller_and_its_caller_for_the_work"
IDLE = f"{LANES}::test_a_time_begins_with_idle_devices_and_ends_with_idle_ones"
NO_RACE = f"{CROSSINGS}::test_no_action_reads_what_may_not_be_written_and_no_memory_goes_too_early"
OWN_STREAMS = (
    f"{LANES}::test_a_whole_gpu_works_on_its_caller_s_stream_and_shares_on_streams_of_their_own"
)
CURRENT = f"{LANES}::test_a_worker_s_current_device_is_its_gpu"
BESIDE = f"{RANKS}::test_an_all_reduce_beside_the_backward_is_timed_on_its_own_stream"
PRETENDED = "splitting/test_placement.py::test_every_way_to_move_a_tensor_counts_once"

# module: function -> (what it does on a GPU, the test that runs it without one)
BRANCHES = {
    "devices/devices.py": {
        "get_devices": (
            "counts GPUs, and spreads devices over them",
            f"{DEVICES}::test_n_devices_spread_over_the_gpus_as_in_the_table",
        ),
        "_place": (
            "refuses a GPU that is not there, gives the current one its number",
            f"{DEVICES}::test_names_of_gpus_become_the_devices_of_the_table",
        ),
        "synchronize": (
            "waits for what was queued without a worker, too",
            f"{LANES}::test_waiting_for_all_waits_for_what_was_queued_without_a_worker",
        ),
        "describe_devices": (
            "names the models",
            f"{DEVICES}::test_gpus_are_described_by_their_models",
        ),
    },
    "devices/lanes.py": {
        "GpuLane.enter": (
            "sets the worker's current device before its first work",
            f"{LANES}::test_a_worker_s_current_device_is_its_gpu",
        ),
        "GpuLane.hand_in": ("works on the caller's stream", BOTH_WAYS),
        "GpuLane.synchronize": (
            "waits for all streams of the GPU",
            f"{LANES}::test_a_share_waits_for_its_own_stream_alone",
        ),
        "GpuShareLane.hand_in": ("marks how far the caller has queued", BOTH_WAYS),
        "GpuShareLane._after": ("waits for that mark on the share's stream", BOTH_WAYS),
        "GpuShareLane.fall_in": (
            "lets the caller's stream wait for the share, also where the work failed",
            f"{LANES}::test_the_caller_waits_for_the_kernels_of_work_that_failed",
        ),
        "GpuShareLane.hand_out": (
            "keeps a value's memory for the caller's stream",
            f"{LANES}::test_the_memory_of_a_value_is_kept_while_its_taker_works_on_it",
        ),
        "_keep_memory": (
            "tells the allocator which stream uses a tensor",
            f"{LANES}::test_the_memory_of_an_argument_is_kept_while_a_share_works_on_it",
        ),
        "_cut": (
            "plain streams where there are no green contexts",
            "devices/test_lanes.py::test_shares_get_plain_streams_where_green_contexts_fail",
        ),
        "_streams_with_own_multiprocessors": (
            "makes green contexts on the GPU whose context is current",
            f"{LANES}::test_green_contexts_are_made_where_the_gpu_has_its_own_context",
        ),
    },
    "devices/crossings.py": {
        "leave": ("an event behind the value", NO_RACE),
        "arrive": ("waits for the event on the stream, or on the host", NO_RACE),
        "arrive.move": ("keeps the memory of a value of another stream", NO_RACE),
        "_copied": (
            "copies between GPUs beside their kernels",
            f"{CROSSINGS}::test_two_gpus_compute_at_the_same_time_though_copies_go_between_them",
        ),
        "_copy_streams": ("a stream for copies on each GPU", NO_RACE),
    },
    "devices/clocks.py": {
        "HostClock": (
            "for CPUs alone",
            "pipeline/test_engine.py::"
            "test_a_pipeline_on_the_cpu_asks_nothing_of_cuda_though_it_was_used_before",
        ),
        "CudaClock.zero": (
            "reads the host's clock when the GPU is idle",
            f"{CROSSINGS}::test_a_clock_begins_when_its_gpu_is_idle",
        ),
        "CudaClock.now": (
            "an event with a time, on the stream used on its own GPU",
            f"{CROSSINGS}::test_a_clock_marks_the_stream_of_its_own_gpu_wherever_it_is_asked",
        ),
        "CudaClock.events": (
            "waits before it reads events",
            f"{CROSSINGS}::test_a_gpu_s_clock_tells_when_kernels_ran_and_not_when_they_were_queued",
        ),
        "clock_for": (
            "events for GPUs",
            f"{CROSSINGS}::test_a_clock_begins_when_its_gpu_is_idle",
        ),
    },
    "devices/timing.py": {
        "_time_once": ("waits before both readings", IDLE),
        "_clocked": ("waits before both readings", IDLE),
    },
    "devices/jobs.py": {
        "_count": (
            "waits before both readings",
            f"{MOVES}::test_a_trial_is_timed_from_an_idle_device_to_an_idle_one",
        ),
    },
    "data_parallel/anatomy.py": {
        "_forward_once.timed": (
            "waits before both readings",
            f"{MOVES}::test_the_clocks_of_the_verbs_are_read_when_the_devices_are_idle",
        ),
        "_split_step": (
            "waits before both readings",
            f"{MOVES}::test_the_clock_of_a_backward_is_read_when_the_devices_are_idle",
        ),
    },
    "data_parallel/replicate.py": {
        "_Copy.forward": (
            "does not wait for a copy to a GPU, waits for one to the CPU",
            f"{MOVES}::test_only_copies_to_gpus_go_on_behind_the_host_s_back",
        ),
    },
    "data_parallel/scatter_gather.py": {
        "_scatter": (
            "does not wait for a copy to a GPU, waits for one to the CPU",
            f"{MOVES}::test_only_copies_to_gpus_go_on_behind_the_host_s_back",
        ),
    },
    "memory/account.py": {
        "count_step": (
            "lets CUDA's allocator count, but not in a rehearsal",
            f"{MEMORY}::test_a_step_on_a_gpu_is_counted_by_its_allocator",
        ),
        **{
            f"_AllocatorCounter.{name}": (
                "bytes now and at most, phase by phase",
                f"{MEMORY}::test_the_allocator_s_peak_is_that_of_the_phase_that_reached_it",
            )
            for name in ("__init__", "live", "_close")
        },
    },
    "memory/recompute.py": {
        name: (
            "notes, sets and restores the GPU's generator",
            f"{MEMORY}::test_a_recomputed_part_draws_from_the_gpu_s_generator_as_before",
        )
        for name in ("_random_states", "_random_numbers_again")
    },
    "pipeline/replay.py": {
        "_where_they_stand": (
            "all GPUs' generators beside the CPU's",
            f"{MEMORY}::test_a_stage_that_runs_again_draws_from_every_gpu_s_generator_as_before",
        ),
    },
    "pipeline/dropout.py": {
        "ReproducibleDropout.forward": (
            "copies the mask from memory that CUDA stages at once",
            "pipeline/test_dropout.py::test_the_mask_is_brought_to_where_the_values_are",
        ),
    },
    "quantization/product.py": {
        "int8_matmul": (
            "fills up to the sizes that NVIDIA's kernel takes",
            "quantization/test_quantization_int8.py::test_the_zeros_that_gpus_need_change_nothing",
        ),
    },
    "splitting/block_times.py": {
        "_measure": (
            "leaves the GPU's generator as it was",
            f"{MOVES}::test_measuring_blocks_leaves_the_gpu_s_generator_alone",
        ),
    },
    "compilation/toolchain.py": {
        "compiler_problem": (
            "asks for Triton",
            "compilation/test_compilation.py::test_the_headers_and_triton_are_looked_for_too",
        ),
    },
    "compilation/compare.py": {
        "start": (
            "waits before both readings",
            f"{LANES}::test_waiting_for_all_waits_for_what_was_queued_without_a_worker",
        ),
    },
    "multiprocess/rank.py": {
        "Rank.__init__": (
            "nccl with GPUs alone",
            "multiprocess/test_multiprocess_speed.py::"
            "test_nccl_only_where_every_rank_has_a_gpu_of_its_own",
        ),
        "_own_device": (
            "a GPU for each rank, or none for any",
            "multiprocess/test_multiprocess_speed.py::"
            "test_nccl_only_where_every_rank_has_a_gpu_of_its_own",
        ),
        "Rank.connect": (
            "sets the current device before it meets the others",
            f"{RANKS}::test_a_rank_s_gpu_is_current_before_it_meets_the_others",
        ),
        "Rank.seconds": (
            "waits before it reads the clock",
            f"{RANKS}::test_a_rank_reads_the_clock_when_its_device_is_done",
        ),
    },
    "multiprocess/overlapped.py": {
        f"_Traced.{name}": ("times the sums on a stream of their own", BESIDE)
        for name in ("__init__", "step", "_ended", "_now", "_synchronize")
    },
    "multiprocess/speed.py": {
        "run": (
            "the caller's thread works on the rank's GPU",
            f"{RANKS}::test_the_caller_of_the_compared_ways_works_on_the_rank_s_gpu",
        ),
        "_timed": (
            "a step ends with its loss, asked for behind the optimizer's step",
            f"{RANKS}::test_a_step_in_parts_asks_for_its_loss_when_the_weights_are_stepped",
        ),
    },
    "multiprocess/ddp.py": {
        "run": (
            "a step ends with its loss, asked for behind the optimizer's step",
            f"{RANKS}::test_a_plain_step_asks_for_its_loss_when_the_weights_are_stepped",
        ),
    },
    "multiprocess/pipeline_work.py": {
        "reproducible": (
            "the same algorithms each time",
            f"{RANKS}::test_inside_reproducible_cudnn_chooses_no_algorithm",
        ),
    },
    "multiprocess/pipelining.py": {
        "run": (
            "events are read between the two readings, which waits",
            f"{CROSSINGS}::test_a_gpu_s_clock_tells_when_kernels_ran_and_not_when_they_were_queued",
        ),
    },
    "splitting/pretended.py": {
        name: ("pretends a GPU: runs everywhere", PRETENDED)
        for name in ("gpu_name", "_GpuNames.__torch_function__", "_GpuNames._place")
    },
}
NO_GPU = {"compilation/xla_step.py": "XLA's devices"}  # modules whose clocks no GPU can fool

# test that needs a GPU -> a test of the same promise without one
GPU_TESTS = {
    "checks/test_checks.py": [
        ("test_a_tensor_counts_wherever_it_is", "test_same"),
    ],
    "data_parallel/test_data_parallel.py": [
        (
            "test_outputs_and_gradients_are_those_of_torch_on_gpus",
            "test_outputs_and_gradients_are_those_of_the_module_alone",
        ),
        (
            "test_batch_norm_in_training_is_torchs_on_gpus",
            "test_batch_norm_in_training_is_the_module_alone_on_each_chunk",
        ),
        (
            "test_scalars_are_torchs_on_gpus",
            "test_scalars_become_a_vector_with_one_entry_for_each_chunk",
        ),
        (
            "test_shares_of_one_gpu_give_what_the_module_gives",
            "test_outputs_and_gradients_are_those_of_the_module_alone",
        ),
        (
            "test_outputs_come_to_the_output_device",
            "test_outputs_and_gradients_are_those_of_the_module_alone",
        ),
    ],
    "data_parallel/test_parallel_apply.py": [
        (
            "test_outputs_and_gradients_are_those_of_torch_on_gpus",
            "test_same_module_twice_gets_both_gradients",
        ),
        ("test_modes_hold_on_gpus_too", "test_modes_of_the_caller_hold_in_the_workers"),
        ("test_shares_of_one_gpu_give_what_the_modules_give", BOTH_WAYS),
    ],
    "data_parallel/test_replicate.py": [
        (
            "test_replicas_are_those_of_torch_on_gpus",
            "test_each_replica_computes_what_the_original_computes",
        ),
        (
            "test_replicas_live_on_their_gpus",
            "test_first_replica_has_the_originals_memory_and_the_others_have_their_own",
        ),
    ],
    "data_parallel/test_scatter_gather.py": [
        ("test_scatter_gives_what_torch_gives_on_gpus", "test_chunks_are_those_of_torch_chunk"),
        ("test_gather_gives_what_torch_gives_on_gpus", "test_tensors_are_joined_along_dim"),
        (
            "test_gather_makes_the_vector_of_scalars_that_torch_makes_on_gpus",
            "test_scalars_become_a_vector",
        ),
        (
            "test_scatter_kwargs_gives_what_torch_gives_on_gpus",
            "test_inputs_and_kwargs_are_cut_together",
        ),
        (
            "test_gradient_through_both_is_torchs_on_gpus",
            "test_gradient_through_scatter_and_gather_is_the_identity",
        ),
    ],
    "devices/test_devices.py": [
        ("test_a_real_gpu_is_described_by_its_model", "test_gpus_are_described_by_their_models"),
        ("test_synchronize_waits_for_kernels_that_a_device_was_handed", IDLE),
    ],
    "devices/test_lanes.py": [
        ("test_work_waits_for_kernels_that_its_caller_had_queued", BOTH_WAYS),
        ("test_the_caller_waits_for_kernels_that_the_work_has_queued", BOTH_WAYS),
        (
            "test_the_memory_of_an_argument_is_not_reused_while_a_share_works_on_it",
            f"{LANES}::test_the_memory_of_an_argument_is_kept_while_a_share_works_on_it",
        ),
        ("test_shares_have_a_stream_each_and_none_is_the_callers", OWN_STREAMS),
        ("test_a_whole_gpu_works_on_its_callers_stream", OWN_STREAMS),
        ("test_the_current_device_of_a_worker_is_its_gpu", CURRENT),
        ("test_two_gpus_have_workers_with_different_current_devices", CURRENT),
        ("test_the_second_gpu_waits_for_what_the_caller_queued_on_it", BOTH_WAYS),
    ],
    "devices/test_timing.py": [
        ("test_measure_waits_for_kernels_that_fn_only_queues", IDLE),
    ],
    "memory/test_account.py": [
        (
            "test_on_cuda_the_allocator_agrees_within_its_rounding",
            f"{MEMORY}::test_the_allocator_s_peak_is_that_of_the_phase_that_reached_it",
        ),
    ],
    "quantization/test_quantization_int8.py": [
        ("test_a_gpu_gives_the_same_product", "test_the_zeros_that_gpus_need_change_nothing"),
    ],
}

# page that names CUDA or nccl -> what stands for a GPU there
BEGINS = "its program's beginning is run below"
ON_PAGES = {
    "start_here": "asks of which kind the devices are",
    "collectives": "prints torch's default time limits",
    "distributed_data_parallel": BEGINS,
    "split_a_model": "pretended GPUs",
    "resnet50_on_two_devices": "a flag of cuDNN",
    "torch_pipelining": BEGINS,
    "does_it_fit": "what a machine without a GPU passes over",
    "cut_inside_a_layer": BEGINS,
}
OF_GPUS = re.compile(r"torch\.cuda|cudnn|nccl|[\"']cuda")
NEEDS_GPU = re.compile(r"mark\.(gpu|two_gpus)|, GPUS\)|not torch\.cuda\.is_available")


def functions_of(text: str) -> dict[str, set[str]]:
    """Function -> what in it belongs to a GPU; annotations do not count."""
    found: dict[str, set[str]] = {}

    def visit(node: ast.AST, path: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            path = (*path, node.name)
        what = {
            ast.Attribute: lambda: node.attr if node.attr in {*ASKED, CLOCK} else None,
            ast.Constant: lambda: node.value if node.value in ("cuda", "nccl") else None,
            ast.keyword: lambda: node.arg if node.arg in ("non_blocking", "pin_memory") else None,
        }.get(type(node), lambda: None)()
        if what:
            found.setdefault(".".join(path), set()).add(what)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, path)

    visit(ast.parse(text), ())
    return found


def branches() -> set[tuple[str, str]]:
    """Module and function of every line of the package that only a GPU runs."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        module = file.relative_to(PACKAGE)
        for function, what in functions_of(file.read_text(encoding="utf-8")).items():
            clock_alone = what == {CLOCK} and module.parts[0] not in TIMED
            if module.parts[0] != "checks" and not clock_alone and str(module) not in NO_GPU:
                found.add((module.as_posix(), function))
    return found


def gpu_marks(file: str) -> dict[str, bool]:
    """Tests of a file, and whether each needs a GPU."""
    nodes = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {
        each.name: any(NEEDS_GPU.search(ast.unparse(mark)) for mark in each.decorator_list)
        for each in functions
        if each.name.startswith("test_")
    }


def is_twin(name: str) -> bool:
    """Whether `file::function` is a test that needs no GPU."""
    file, _, function = name.partition("::")
    return gpu_marks(file).get(function) is False


def cells_of_pages() -> dict[str, list[str]]:
    books = {file.stem[3:]: json.loads(file.read_bytes()) for file in PAGES.glob("*.ipynb")}
    return {
        page: ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
        for page, book in books.items()
    }


def test_every_branch_for_gpus_is_in_the_table_and_none_that_is_gone():
    listed = {(module, function) for module, rows in BRANCHES.items() for function in rows}
    assert branches() - listed == set(), "not in the table"
    assert listed - branches() == set(), "gone"


@pytest.mark.parametrize("module", BRANCHES)
def test_every_branch_has_a_test_that_runs_it_without_a_gpu(module):
    missing = [twin for _, twin in BRANCHES[module].values() if not is_twin(twin)]
    assert missing == []


def test_every_test_that_needs_a_gpu_has_one_that_needs_none():
    files = [file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py")]
    on_gpus = {(file, name) for file in files for name, on in gpu_marks(file).items() if on}
    assert on_gpus == {(file, name) for file, pairs in GPU_TESTS.items() for name, _ in pairs}
    twins = [
        twin if "::" in twin else f"{file}::{twin}"
        for file, pairs in GPU_TESTS.items()
        for _, twin in pairs
    ]
    assert [twin for twin in twins if not is_twin(twin)] == []


def test_every_page_that_names_cuda_is_in_the_table():
    pages = cells_of_pages().items()
    assert {page for page, cells in pages if OF_GPUS.search("\n".join(cells))} == set(ON_PAGES)


def test_where_the_cpu_s_generator_alone_is_restored_it_alone_is_seeded():
    """`torch.manual_seed` seeds all GPUs, too, and `fork_rng(devices=[])` leaves them so."""
    found = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.With) and "fork_rng(devices=[])" in ast.unparse(node.items[0]):
                found.append((file.name, "torch.manual_seed(" in ast.unparse(node)))
    assert found
    assert [name for name, seeds_gpus in found if seeds_gpus] == []


@pytest.mark.parametrize("page", [page for page, how in ON_PAGES.items() if how == BEGINS])
@pytest.mark.parametrize(("ranks", "met"), [(2, ("nccl", 1)), (3, ("gloo", 0))])
def test_a_program_of_a_page_takes_a_gpu_for_each_rank_or_none(page, ranks, met, monkeypatch):
    """Its lines up to the meeting are run as rank 1 on a machine with two GPUs."""
    cuda, asked = pretend_cuda(monkeypatch, gpus=2), []
    for name, value in {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": ranks, "WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(
        distributed,
        "init_process_group",
        lambda backend, **_: asked.append((backend, cuda.current_device())),
    )
    [cell] = [cell for cell in cells_of_pages()[page] if "set_device" in cell]
    lines = ast.parse(cell.partition("\n")[2]).body
    lines = next((n.body for n in lines if getattr(n, "name", "") == "start"), lines)
    [last] = [i for i, line in enumerate(lines) if "init_process_group" in ast.unparse(line)]
    wanted = [n for n in lines[: last + 1] if isinstance(n, ast.Assign | ast.If | ast.Expr)]
    wanted = [node for node in wanted if "sys.argv" not in ast.unparse(node)]
    names = {"os": os, "torch": torch, "distributed": distributed, "timedelta": timedelta}
    exec(compile(ast.Module(wanted, []), page, "exec"), names)
    assert asked == [met]
