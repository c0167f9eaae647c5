"""What is typed reaches JupyterLab and pytest, and their exit status comes back."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forks import copy_course

from mpcourse import __main__ as command_line
from mpcourse.commands.setup import COURSE, ROOT, SITE, TESTS, SetupError

PAGE = "my_notebooks/00_start_here.ipynb"


class FakeEnvironment:
    """Records what is installed and run."""

    folder = Path("a clone/.venv")

    def __init__(self) -> None:
        self.ensured, self.ran = [], []
        self.status, self.broken = 0, ""
        self.trouble = self.here = None

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
    copy_course(tmp_path, "notebooks/00_start_here.ipynb")
    monkeypatch.setattr(command_line, "ROOT", tmp_path)
    return environment


def test_lab_opens_a_clean_copy_of_the_first_page(environment, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    assert command_line.main(["lab"]) == 0
    assert environment.ensured == [COURSE]
    [ran] = environment.ran
    defaults, mine = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert mine == "mine"
    assert Path(defaults, "labconfig/default_setting_overrides.json").is_file()
    assert ran[:2] == ["jupyterlab", f"--LabApp.default_url=/lab/tree/{PAGE}"]
    assert "--no-browser" not in ran
    assert environment.here is False
    assert "my_notebooks/ has clean copies of 1 pages" in capsys.readouterr().out
    notebook = json.loads((tmp_path / PAGE).read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"])


def test_lab_opens_the_stored_pages_when_asked(environment, tmp_path):
    command_line.main(["lab", "--stored"])
    [ran] = environment.ran
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in ran
    assert not (tmp_path / "my_notebooks").exists()


def test_handout_writes_clean_copies_and_needs_nothing_installed(environment, tmp_path, capsys):
    folder, other = tmp_path / "class" / "monday", "notebooks/05_split_a_model.ipynb"
    copy_course(tmp_path, other)
    assert command_line.main(["handout", str(folder)]) == 0
    assert len(list(folder.glob("*.ipynb"))) == 2
    assert f"{folder}/ has clean copies of 2 pages" in capsys.readouterr().out
    some = ["handout", str(tmp_path / "some"), "5", "--without-solutions"]
    assert command_line.main(some) == 0
    [copy] = (tmp_path / "some").glob("*.ipynb")
    assert copy.name == Path(other).name
    for path, seen in [(copy, False), (folder / copy.name, True)]:
        assert ("def training_step(" in path.read_text("utf-8")) == seen
    assert command_line.main(["handout", str(folder), "9"]) == 1
    assert "no page '9'; there are: 00_start_here, 05_split_a_model" in capsys.readouterr().err
    assert command_line.main(["handout", str(tmp_path / "notebooks")]) == 1
    assert "holds the pages themselves" in capsys.readouterr().err
    assert environment.ensured == []


def test_lab_passes_its_options_and_what_follows_the_dashes(environment, monkeypatch, capsys):
    command_line.main(["lab", "--no-browser", "--port", "8899", "--", "--ip=0.0.0.0", "--debug"])
    monkeypatch.setattr(command_line, "has_display", lambda variables, *, platform: False)
    command_line.main(["lab"])
    asked, without_display = environment.ran
    assert {"--no-browser", "--port=8899"} < set(asked)
    assert asked[-2:] == ["--ip=0.0.0.0", "--debug"]
    assert "--no-browser" in without_display
    assert "There is no display here, so no browser is opened" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        *(("linux", {}, False), ("linux", {"DISPLAY": ""}, False), ("darwin", {}, True)),
        *(("linux", {name: "x"}, True) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")),
        ("win32", {}, True),
    ],
)
def test_a_display_is_seen(platform, variables, expected):
    assert command_line.has_display(variables, platform=platform) is expected


@pytest.mark.parametrize("rest", [[], ["tests/test_setup.py", "-x"]])
def test_test_hands_on_what_follows_the_dashes_and_ends_with_pytests_status(environment, rest):
    environment.status = 3
    assert command_line.main(["test", "--here", "--", *rest]) == 3
    assert environment.here is True
    assert environment.ensured == [TESTS]
    assert environment.ran == [["pytest", "--nbval", *command_line.THREE_AT_A_TIME, *rest]]


@pytest.mark.parametrize(
    ("words", "module", "understood"),
    [
        (["pages", "00", "--stored"], "pages", {"pages": ["00"], "stored": True, "address": None}),
        (["pages", "--address"], "pages", {"pages": [], "stored": False, "address": ""}),
        (["site", "to/read"], "site.site", {"folder": "{here}/to/read"}),
        (
            ["grade", "class", "--jobs", "2", "--out", "/marks"],
            "grading.gradebook",
            {
                **{"folder": "{here}/class", "out": str(Path("/marks").resolve()), "jobs": 2},
                **{"time_limit_s": 300, "memory_gb": 4},
            },
        ),
    ],
)
def test_what_needs_the_environment_runs_in_it_and_sees_folders_from_here(
    environment, tmp_path, monkeypatch, words, module, understood
):
    monkeypatch.chdir(tmp_path)
    environment.status = 2
    assert command_line.main(words) == 2
    assert environment.ensured == [SITE if words[0] == "site" else COURSE]
    [(ran, asked)] = environment.ran
    assert ran == f"mpcourse.commands.{module}"
    if "folder" in understood:
        understood = {**understood, "folder": understood["folder"].format(here=tmp_path.resolve())}
    assert json.loads(asked) == {"command": words[0], "here": False, **understood}


@pytest.mark.parametrize(("status", "broken"), [(0, ""), (1, ""), (0, "there is none yet")])
def test_check_installs_nothing_and_takes_this_python_if_need_be(environment, status, broken):
    environment.status, environment.broken = status, broken
    assert command_line.main(["check"]) == status
    assert environment.ensured == []
    assert environment.ran == [["mpcourse.commands.check"]]
    assert environment.here is bool(broken)


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
        (["grade", "class", "--jobs", "many"], "invalid number value: 'many'"),
        (["grade", "class", "--jobs", "0"], "--jobs: 0 is not from 1 to 64"),
        (["grade", "class", "--time-limit-s", "nan"], "limit-s: nan is not from 30 to 86400"),
        (["grade", "class", "--memory-gb", "1e6"], "--memory-gb: 1e6 is not from 1 to 1024"),
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
    [(SetupError("do this"), 1, "mpcourse: do this"), (KeyboardInterrupt(), 130, "Stopped.")],
)
def test_trouble_ends_in_a_sentence(environment, capsys, trouble, status, said):
    environment.trouble = trouble
    assert command_line.main(["lab"]) == status
    assert said in capsys.readouterr().err
    assert environment.ran == []


@pytest.mark.parametrize("is_root", [False, True])
def test_root_is_told_what_a_notebook_may_do(environment, monkeypatch, capsys, is_root):
    monkeypatch.setattr(command_line, "is_root", lambda: is_root)
    command_line.main(["lab"])
    assert ("You are root" in capsys.readouterr().out) == is_root
    assert ("--allow-root" in environment.ran[0]) == is_root


@pytest.fixture
def clone(tmp_path) -> Path:
    """The package, elsewhere."""
    return copy_course(tmp_path / "clone", "mpcourse")


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
import time
print("ready", flush=True)
while True:  # pause() would miss what arrives right before it
    time.sleep(0.1)
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
    for words in (f"is {version[0]}.{version[1]}.", "python3.12 -m mpcourse lab", "3.11 or newer"):
        assert words in said
    assert command_line.python_problem((3, 11, 0)) == command_line.python_problem((4, 0)) == ""


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_what_an_old_python_reads_has_no_newer_syntax_and_imports_nothing_before(name):
    source = (ROOT / "mpcourse" / name).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    before, asked, _ = source.partition("\nif python_problem(sys.version_info)")
    assert bool(asked) == (name == "__main__.py")
    nodes = [n for n in ast.parse(before).body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not asked or [ast.unparse(node) for node in nodes] == ["import sys"]
