"""A site to read: all stored pages as HTML, by Sphinx, without a kernel and without a network.

Nothing is run: pictures and numbers are those that the pages hold. The files of the site open from
a folder as well as from a server.
"""

import io
import json
import re
import sys
import tempfile
from pathlib import Path
from shutil import copy, copytree

import nbformat
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace, patch_docutils

from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import read, without_colours
from mpcourse.commands.setup import ROOT
from mpcourse.commands.site.page import explorer_of, for_readers

SOURCE = Path(__file__).with_name("source")
WRITTEN = "mpcourse-site.txt"  # names the files of a site: these may be replaced, and no others
FOLDER = r"(?:\.\./|notebooks/|data/pictures/|mpcourse/commands/site/source/)+"  # in a link


def build_site(folder: Path) -> list[Path]:
    """Write the site, in the place of an earlier one; return its pages, the front page first."""
    old = _written(folder)
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary, "source"), Path(temporary, "built")
        lay_out(source)
        to_html(source, built)
        made = [path for path in sorted(built.rglob("[!.]*")) if path.is_file()]
        files = {path.relative_to(built).as_posix(): path.read_bytes() for path in made}
    files = {WRITTEN: "\n".join(files).encode()} | files
    for name in old.union(files):
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{folder / name} is in another folder; take it away first")
        if name not in old and (folder / name).exists():
            raise ValueError(f"{folder / name} was not written by this command; take it away first")
    for name in old - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, contents in files.items():  # the list first: a build that is cut off can be repeated
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    (folder / ".nojekyll").touch()  # so that GitHub serves what begins with _, too
    pages = [name for name in files if re.fullmatch(r"[^/]+\.html", name)]
    return [folder / name for name in sorted(pages, key=lambda name: name != "index.html")]


def _written(folder: Path) -> set[str]:
    """The files that an earlier build wrote; ValueError where others are, and no site."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the site")
    if (folder / WRITTEN).is_file():
        return {WRITTEN, *(folder / WRITTEN).read_text(encoding="utf-8").splitlines()}
    if any(path.name != "CNAME" for path in folder.glob("[!.]*")):
        raise ValueError(f"{folder} holds something else than a site; name another folder")
    return set()


def lay_out(source: Path) -> None:
    """Put what Sphinx reads into one folder: settings, texts, pictures, and the pages."""
    copytree(SOURCE, source)
    for text in ROOT.glob("*.md"):
        copy(text, source)
    for text in source.glob("*.md"):
        links = re.sub(rf"(?<=\]\(){FOLDER}", "", text.read_text("utf-8"))
        text.write_text(links, "utf-8")
    copytree(ROOT / "data/pictures", source, dirs_exist_ok=True)
    (source / "explorer.html").write_text(explorer_of("schedules"), encoding="utf-8")
    for path in find_pages([]):
        nbformat.write(for_readers(read(path), page_key(path.name)), source / path.name)


def to_html(source: Path, built: Path) -> None:
    """Run Sphinx; raise ValueError with what it warned of."""
    said, trees = io.StringIO(), source.parent / "doctrees"
    with patch_docutils(source), docutils_namespace():
        Sphinx(source, source, built, trees, "html", status=None, warning=said).build()
    if said.getvalue():
        raise ValueError(f"Sphinx says: {without_colours(said.getvalue()).strip()}")


def main(asked: dict) -> int:
    """Build the site in the folder that is asked for; return the exit status."""
    try:
        files = build_site(Path(asked["folder"]))
    except (ValueError, OSError, SphinxError) as error:
        print(f"no site was written: {error}", file=sys.stderr)
        return 1
    print(f"{len(files)} pages are written; open {files[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
