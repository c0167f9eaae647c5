"""What is typed reaches JupyterLab and pytest, and their exit status comes back."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpcourse import __main__ as command_line
from mpcourse.commands.setup import COURSE, ROOT, TESTS, SetupError

PAGE = "my_notebooks/00_start_here.ipynb"


class FakeEnvironment:
    """Records what is installed and run."""

    folder = Path("a clone/.venv")

    def __init__(self) -> None:
        self.ensured = []
        self.ran = []
        self.status = 0
        self.trouble = None
        self.broken = ""
        self.here = None

    def ensure(self, files) -> None:
        if self.trouble:
            raise self.trouble
        self.ensured.append(files)

    def run(self, *arguments) -> int:
        self.ran.append(list(arguments))
        return self.status

    def probe(self) -> dict:
        return {}

    def problem(self, facts) -> str:
        return self.broken


@pytest.fixture
def environment(monkeypatch, tmp_path) -> FakeEnvironment:
    environment = FakeEnvironment()

    def find(*, here: bool) -> FakeEnvironment:
        environment.here = here
        return environment

    monkeypatch.setattr(command_line, "find_environment", find)
    monkeypatch.setattr(command_line, "has_display", lambda variables, *, platform: True)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks/00_start_here.ipynb", tmp_path / "notebooks")
    monkeypatch.setattr(command_line, "ROOT", tmp_path)
    return environment


def test_lab_starts_jupyterlab_on_the_first_page(environment):
    assert command_line.main(["lab"]) == 0
    assert environment.ensured == [COURSE]
    [ran] = environment.ran
    assert ran[:2] == ["jupyterlab", f"--LabApp.default_url=/lab/tree/{PAGE}"]
    assert "--no-browser" not in ran
    assert environment.here is False


def test_lab_opens_a_clean_copy_and_leaves_it_alone_afterwards(environment, tmp_path, capsys):
    command_line.main(["lab"])
    assert "my_notebooks/ has clean copies of 1 pages" in capsys.readouterr().out
    copy = tmp_path / PAGE
    notebook = json.loads(copy.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    copy.write_text("my own words", encoding="utf-8")
    command_line.main(["lab"])
    assert copy.read_text(encoding="utf-8") == "my own words"


def test_lab_opens_the_stored_pages_when_asked(environment, tmp_path):
    command_line.main(["lab", "--stored"])
    [ran] = environment.ran
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in ran
    assert not (tmp_path / "my_notebooks").exists()


def test_handout_writes_clean_copies_and_needs_nothing_installed(environment, tmp_path, capsys):
    folder = tmp_path / "class" / "monday"
    assert command_line.main(["handout", str(folder)]) == 0
    assert environment.ensured == []
    assert [path.name for path in folder.glob("*.ipynb")] == ["00_start_here.ipynb"]
    assert f"{folder}/ has clean copies of 1 pages" in capsys.readouterr().out


def test_handout_into_the_pages_is_refused(environment, tmp_path, capsys):
    assert command_line.main(["handout", str(tmp_path / "notebooks")]) == 1
    assert "holds the pages themselves" in capsys.readouterr().err


def test_lab_passes_its_options_and_what_follows_the_dashes(environment):
    command_line.main(["lab", "--no-browser", "--port", "8899", "--", "--ip=0.0.0.0", "--debug"])
    [ran] = environment.ran
    assert "--no-browser" in ran
    assert "--port=8899" in ran
    assert ran[-2:] == ["--ip=0.0.0.0", "--debug"]


def test_lab_says_plainly_when_no_browser_is_opened(environment, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "has_display", lambda variables, *, platform: False)
    command_line.main(["lab"])
    assert "--no-browser" in environment.ran[0]
    assert "There is no display here, so no browser is opened" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"BROWSER": "firefox"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
    ],
)
def test_a_display_is_seen(platform, variables, expected):
    assert command_line.has_display(variables, platform=platform) is expected


def test_only_root_allows_root():
    as_root = command_line.lab_arguments("x", browser=True, is_root=True, port=None)
    as_user = command_line.lab_arguments("x", browser=True, is_root=False, port=None)
    assert as_root == [*as_user, "--allow-root"]


@pytest.mark.parametrize(
    ("status", "result"), [(0, "passed in"), (1, "FAILED (pytest's exit status 1) in")]
)
def test_test_runs_everything_and_ends_with_pytests_status(environment, capsys, status, result):
    environment.status = status
    assert command_line.main(["test"]) == status
    assert environment.ensured == [TESTS]
    assert environment.ran == [["pytest", "--nbval", *command_line.TWO_AT_A_TIME]]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"Tests {result} ")
    assert last.endswith(" minutes.")


def test_test_hands_paths_and_options_to_pytest(environment):
    command_line.main(["test", "--here", "--", "tests/test_setup.py", "-x"])
    assert environment.here is True
    rest = ["tests/test_setup.py", "-x"]
    assert environment.ran == [["pytest", "--nbval", *command_line.TWO_AT_A_TIME, *rest]]


@pytest.mark.parametrize(
    ("words", "module", "passed_on"),
    [
        (["pages", "00", "--check"], "pages", ["00", "--check"]),
        (["site", "to/read"], "site.site", ["{here}/to/read"]),
        (
            ["grade", "class", "--jobs", "2"],
            "grading.gradebook",
            ["{here}", "class", "--jobs", "2"],
        ),
    ],
)
def test_what_needs_the_environment_runs_in_it_and_sees_folders_from_here(
    environment, tmp_path, monkeypatch, words, module, passed_on
):
    monkeypatch.chdir(tmp_path)
    environment.status = 2
    assert command_line.main(words) == 2
    assert environment.ensured == [COURSE]
    passed_on = [word.format(here=tmp_path.resolve()) for word in passed_on]
    assert environment.ran == [[f"mpcourse.commands.{module}", *passed_on]]


@pytest.mark.parametrize("status", [0, 1])
def test_check_installs_nothing(environment, status):
    environment.status = status
    assert command_line.main(["check"]) == status
    assert environment.ensured == []
    assert environment.ran == [["mpcourse.commands.check"]]
    assert environment.here is False


def test_check_takes_this_python_when_there_is_no_environment_but_a_torch(environment):
    environment.broken = "there is none yet"
    command_line.main(["check"])
    assert environment.here is True
    assert len(environment.ran) == 1


def test_check_without_any_torch_says_what_to_type(environment, monkeypatch, capsys):
    environment.broken = "there is none yet"
    monkeypatch.setattr(command_line.importlib.util, "find_spec", lambda name: None)
    assert command_line.main(["check"]) == 1
    said = capsys.readouterr().err
    assert "there is none yet" in said
    assert "Type this first: python3 -m mpcourse lab" in said
    assert environment.ran == []


def test_without_a_command_the_commands_are_named(capsys):
    assert command_line.main([]) == 0
    said = capsys.readouterr().out
    for name in command_line.COMMANDS:
        assert f"\n    {name} " in said
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_help_is_printed_and_nothing_is_installed(environment, capsys, name):
    for words in ([name, "-h"], [name, "x", "--help"]):
        with pytest.raises(SystemExit) as ended:
            command_line.main(words)
        assert ended.value.code == 0
        assert f"usage: python -m mpcourse {name}" in capsys.readouterr().out
    assert (environment.ensured, environment.ran) == ([], [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab", "--ip=0.0.0.0"], "unknown: --ip=0.0.0.0 (what JupyterLab or pytest"),
        (["test", "tests/test_setup.py"], "unknown: tests/test_setup.py"),
        (["lab", "--port", "many"], "invalid int value: 'many'"),
        (["play"], "invalid choice: 'play'"),
        (["grade"], "the following arguments are required: folder"),
        (["grade", "class", "--jobs", "many"], "invalid int value: 'many'"),
        (["pages", "--adress"], "unknown: --adress"),
    ],
)
def test_what_cannot_be_understood_is_named(environment, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert (environment.ensured, environment.ran) == ([], [])


@pytest.mark.parametrize(
    ("trouble", "status", "said"),
    [
        (SetupError("do this"), 1, "mpcourse: do this"),
        (TimeoutError("delete that"), 1, "mpcourse: delete that"),
        (KeyboardInterrupt(), 130, "Stopped."),
    ],
)
def test_trouble_ends_in_a_sentence(environment, capsys, trouble, status, said):
    environment.trouble = trouble
    assert command_line.main(["lab"]) == status
    assert said in capsys.readouterr().err
    assert environment.ran == []


@pytest.mark.parametrize("is_root", [False, True])
def test_root_is_told_what_a_notebook_may_do(environment, monkeypatch, capsys, is_root):
    monkeypatch.setattr(command_line, "is_root", lambda: is_root)
    for words in (["lab"], ["grade", "class"]):
        command_line.main(words)
        assert ("You are root" in capsys.readouterr().out) == is_root
    assert ("--allow-root" in environment.ran[0]) == is_root


@pytest.fixture
def clone(tmp_path) -> Path:
    """The package, elsewhere."""
    root = tmp_path / "clone"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mpcourse", root / "mpcourse", ignore=skip)
    return root


def test_the_commands_can_be_typed_in_another_folder(clone, tmp_path):
    command = [sys.executable, clone / "mpcourse" / "__main__.py", "grade", "--help"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("usage: python -m mpcourse grade")


@pytest.mark.parametrize(
    ("name", "said"),
    [("random.py", "random.py hides Python's own module random"), ("test.py", ""), ("torch", "")],
)
def test_a_file_that_hides_a_module_of_python_is_named(clone, name, said):
    (clone / name).write_text("raise SystemError")
    command = [sys.executable, "-m", "mpcourse"]
    answer = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert answer.returncode == bool(said)
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


STOP = """
import os, signal
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no POSIX signals")
@pytest.mark.parametrize("module", ["pages", "site.site", "grading.gradebook", "check"])
def test_control_c_is_one_word_and_no_traceback(clone, module):
    (clone / "mpcourse/commands" / f"{module.replace('.', '/')}.py").write_text(STOP)
    (clone / "notebooks").mkdir()
    code = """
import sys
from pathlib import Path
from mpcourse import __main__ as door
from mpcourse.commands.setup import Environment
Environment.ensure = Environment.problem = lambda *_: None
door.find_environment = lambda **_: Environment(Path.cwd(), Path.cwd(), Path(sys.executable))
sys.exit(door.main(sys.argv[1:]))
"""
    name = {"site.site": "site", "grading.gradebook": "grade"}.get(module, module)
    words = [name] if name in ("pages", "check") else [name, "folder"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, cwd=clone, text=True, **pipes) as process:
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (130, "\nStopped.\n")


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 99), (2, 7, 18)])
def test_a_python_that_is_too_old_hears_what_to_do(version):
    said = command_line.python_problem(version)
    assert "needs Python 3.11 or newer" in said
    assert f"is {version[0]}.{version[1]}." in said
    assert "python3.12 -m mpcourse lab" in said
    assert command_line.python_problem((3, 11, 0)) == command_line.python_problem((4, 0)) == ""


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_what_an_old_python_reads_has_no_newer_syntax(name):
    source = (ROOT / "mpcourse" / name).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))


def test_the_version_is_looked_at_before_anything_is_imported():
    source = (ROOT / "mpcourse" / "__main__.py").read_text(encoding="utf-8")
    before = source[: source.index("\nif python_problem(sys.version_info)")]
    nodes = [
        node for node in ast.parse(before).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert [ast.unparse(node) for node in nodes] == ["import sys"]


def test_a_bare_python_is_enough():
    code = "import sys, mpcourse.__main__ as door; print('torch' in sys.modules); door.main([])"
    # -S: the interpreter without any installed package
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("False\nusage: python -m mpcourse")
