"""A site to read: all stored pages as HTML, by Sphinx, without a kernel and without a network.

Page: all of them; `python -m mpcourse site FOLDER` builds it. Nothing is run: pictures and numbers
are those that the pages hold. The files of the site open from a folder as well as from a server.
"""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from string import Template

import nbformat
from sphinx.cmd.build import build_main

from mpcourse.commands.address import address_remedy, read_address
from mpcourse.commands.page_format import page_key
from mpcourse.commands.pages import find_pages, read
from mpcourse.commands.setup import ROOT
from mpcourse.commands.site.explorers import page_frames
from mpcourse.commands.site.page import aims_of, explorer_html, for_readers, minutes_of, title_of

SOURCE = Path(__file__).with_name("source")
WRITTEN = "mpcourse-site.txt"  # names the files of a site: these may be replaced, and no others
FRONT = "schedules"  # whose explorer stands on the front page
SHORT = ("start_here", "split_a_model", "pipeline")  # the path of three hours
PARTS = {  # what a part of the course is called -> the page that it begins with
    "Begin": "start_here",
    "Cut the batch": "scatter_and_gather",
    "Cut the network": "split_a_model",
    "Several processes, several hosts": "torch_pipelining",
    "Make it fit": "does_it_fit",
    "Make it smaller": "pruning",
    "Put together": "capstone",
}


def build_site(folder: Path, paths: Sequence[Path] | None = None) -> list[Path]:
    """Write the site of these pages, or of all; return its HTML pages, the front page first.

    What an earlier build has written is replaced, all else in the folder stays. Raises ValueError,
    with nothing changed, where that cannot be.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the site")
    old = _written(folder)
    paths = find_pages([]) if paths is None else paths
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary, "source"), Path(temporary, "built")
        _write_source(source, paths)
        _run_sphinx(source, built)
        files = {
            path.relative_to(built).as_posix(): path.read_bytes()
            for path in sorted(built.rglob("*"))
            if path.is_file() and path.name not in (".buildinfo", "objects.inv")
        }
    files = {WRITTEN: "".join(f"{name}\n" for name in sorted(files)).encode()} | files
    _refuse_others(folder, files, old)
    for name in old - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, contents in files.items():  # the list first: a build that is cut off can be repeated
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return [folder / f"{name}.html" for name in ("index", *(path.stem for path in paths))]


def _write_source(source: Path, paths: Sequence[Path]) -> None:
    """Lay out what Sphinx reads: settings, a front page, the pages, frames of their explorers."""
    copytree(SOURCE, source)
    frames_folder = source / "_static/frames"
    frames_folder.mkdir()
    notebooks = {path.stem: read(path) for path in paths}
    front = ""
    for path in paths:
        key = page_key(path.name)
        frames = page_frames(key, notebooks[path.stem])
        if frames:
            (frames_folder / f"{key}.js").write_text(frames.to_script(), encoding="utf-8")
        if frames and key == FRONT:
            front = explorer_html(frames.about, key, frames)
        page = for_readers(notebooks[path.stem], key, frames)
        nbformat.write(page, source / path.name)
    picture = ROOT / "data/pictures/timeline.svg"
    (source / picture.name).write_bytes(picture.read_bytes())
    template = Template((SOURCE / "index.md").read_text(encoding="utf-8"))
    text = template.substitute(_front_page(notebooks), explorer=front, picture=picture.name)
    (source / "index.md").write_text(text, encoding="utf-8")


def _front_page(notebooks: Mapping[str, nbformat.NotebookNode]) -> dict[str, str]:
    """What the front page says of the pages, by the names in its template."""
    keys = {page_key(f"{stem}.ipynb"): stem for stem in notebooks}
    stems = [keys[key] for key in SHORT if key in keys]
    short = [f"[{title_of(notebooks[stem])}]({stem}.ipynb)" for stem in stems]
    minutes = sum(map(minutes_of, notebooks.values()))
    begins = {page: part for part, page in PARTS.items()}
    map_, trees = [], []
    for key, stem in keys.items():
        if key in begins or not trees:
            map_.append(f"### {begins.get(key, 'Pages')}\n")
            trees.append([begins.get(key, "Pages")])
        aims = "; ".join(aims_of(notebooks[stem]))
        about = f"{aims} ({minutes_of(notebooks[stem])} minutes)"
        map_.append(f"- [{title_of(notebooks[stem])}]({stem}.ipynb): {about}\n")
        trees[-1].append(stem)
    for caption, *stems in trees:
        listed = "\n".join(stems)
        map_.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n")
    script = (ROOT / "README.md").read_text(encoding="utf-8")
    alt = re.search(r"!\[([^\]]*)\]\(data/pictures/timeline.svg\)", script)[1]
    return {
        "alt": " ".join(alt.split()),
        "short": ", ".join(short),
        "pages": str(len(notebooks)),
        "hours": f"{minutes / 60:.0f}",
        "address": read_address().repository,
        "map": "\n".join(map_),
    }


def _run_sphinx(source: Path, built: Path) -> None:
    """Build; raise ValueError with what Sphinx said where it failed or warned."""
    warnings = source.parent / "warnings.txt"
    words = ["-b", "html", "-q", "-E", "-w", str(warnings), "-d", str(source.parent / "doctrees")]
    status = build_main([*words, str(source), str(built)])
    said = warnings.read_text(encoding="utf-8").strip() if warnings.exists() else ""
    if status or said:
        raise ValueError(f"Sphinx (exit status {status}) says: {said}")


def _written(folder: Path) -> set[str]:
    """The files that an earlier build wrote; ValueError where others are, and no site."""
    if (folder / WRITTEN).is_file():
        return {WRITTEN, *(folder / WRITTEN).read_text(encoding="utf-8").splitlines()}
    others = [path.name for path in folder.glob("[!.]*") if path.name != "CNAME"]
    if others:
        raise ValueError(f"{folder} holds something else than a site; name another folder")
    return set()


def _refuse_others(folder: Path, new: Mapping[str, bytes], old: set[str]) -> None:
    """Raise ValueError when a file that no build wrote would be replaced, or one elsewhere."""
    whole = folder.resolve()
    for name in {*new, *old}:
        if not (whole / name).resolve().is_relative_to(whole):
            raise ValueError(f"{folder / name} is in another folder; take it away first")
        if name not in old and (whole / name).exists():
            raise ValueError(f"{folder / name} was not written by this command; take it away first")


def main(argv: Sequence[str]) -> int:
    """Build the site in the folder that is named; return the exit status."""
    folder = Path(argv[0])
    try:
        files = build_site(folder)
    except (ValueError, OSError) as error:
        print(f"no site was written: {error}", file=sys.stderr)
        return 1
    print(f"{len(files)} pages are written; open {files[0]}")
    if remedy := address_remedy():
        print(f"It has no links to launch a page: {remedy}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
