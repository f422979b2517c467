"""The pages of the documentation: read without a build, and not stale."""

import re
from pathlib import Path

import docstrings
import goccl
import header
import pages
import prose
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [str(page.relative_to(ROOT)) for page in pages.pages()]

# What Sphinx alone understands, by what it is. Other readers see its text, or nothing.
SPHINX_ONLY = {
    "a directive": r"^\s*(?:`{3,}|~{3,}|:{3,})\s*\{",
    "a role": r"\{[\w:+-]+\}`",
    "a label": r"^\([\w-]+\)=\s*$",
    "a comment": r"^%\s",
}


def without_code(text):
    """A page without its blocks of code."""
    return re.sub(r"^(`{3,})[\w-]*\n.*?^\1$", "", text, flags=re.M | re.S)


def sphinx_only(text):
    text = re.sub(r"(?<![`}])`[^`\n]+`", "code", without_code(text))
    return [what for what, pattern in SPHINX_ONLY.items() if re.search(pattern, text, re.M)]


def anchors(page):
    """The anchors of the headings of a page, which must differ."""
    text = without_code(page.read_text())
    return [
        prose.anchor(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading))
        for heading in re.findall(r"^#+ (.*)", text, re.M)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_that_of_its_sources(page):
    text = (ROOT / page).read_text()
    assert pages.made(ROOT / page, text) == text, f"{page} is stale: make pages"
    markers = re.findall(r"^<!-- (make pages:|end)", text, re.M)
    assert markers == ["make pages:", "end"] * len(pages.MARKED.findall(text))


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_plain_markdown(page):
    assert sphinx_only((ROOT / page).read_text()) == []


def test_pages_are_of_one_language():
    assert list((ROOT / "docs").rglob("*.rst")) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    here = ROOT / page
    text = without_code(re.sub(r"`[^`\n]+`", "code", here.read_text()))
    links = re.findall(r"\]\((?!\w+:)([^)\s]*)\)", text)
    for path, _, anchor in (link.partition("#") for link in links):
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{page}: {path}"
        assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


@pytest.mark.parametrize("index", [page for page in PAGES if page.endswith("/index.md")])
def test_index_pages_link_to_all_of_their_folder(index):
    text = (ROOT / index).read_text()
    beside = {page.name for page in (ROOT / index).parent.glob("*.md")} - {"index.md"}
    assert beside <= set(re.findall(r"\]\(([\w-]+\.md)", text))


@pytest.mark.parametrize(
    "text",
    [
        "```{include} x.md\n```",
        ":::{note}\nText.\n:::",
        "See {doc}`x`.",
        "(label)=\n# Title",
        "```text\n{ref}`x`\n```\n\n````{note}\n```\ncode\n```\n````",
    ],
)
def test_what_sphinx_alone_understands_is_found(text):
    assert sphinx_only(text)


def test_plain_markdown_is_not():
    assert sphinx_only("```bash\necho {x}\n```\n\n`{doc}` and [a link](x.md).\n") == []


def test_a_piece_is_made_anew(tmp_path):
    old = "Text.\n\n<!-- make pages: code examples/train_elastic.py work -->\nold\n<!-- end -->\n"
    new = pages.made(ROOT / "docs" / "page.md", old)
    assert (
        "[`examples/train_elastic.py`](../examples/train_elastic.py)\n\n```python\ndef work(" in new
    )
    assert "old" not in new
    assert pages.made(ROOT / "docs" / "page.md", new) == new
    with pytest.raises(KeyError, match="nothing"):
        pages.made(ROOT / "page.md", old.replace("code", "nothing"))


HEADER = """\
/*
 * goccl.h - a header.
 *
 * Model
 *   See goccl_b().
 */
#define GOCCL_VERSION_MAJOR 0

/* ---- one ------- */

/* Takes *n, as goccl_b() does:
 *   "key"    what it is,
 *            in two lines
 *   "other"  else
 * - it goes on.
 *
 * Of goccl_a(). */
goccl_result goccl_a(int *n);

/* ---- two ------
 * Words of the section. */

/* A struct. */
typedef struct {
  int rank; /* a number */
} goccl_b_info;
typedef void (*goccl_callback)(void *context);
goccl_result goccl_b(goccl_callback callback);
goccl_result goccl_b_async(void);
goccl_result goccl_c(int a,
                     int b);

#ifdef __cplusplus
}
#endif
"""


def test_a_header_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(header, "ROOT", tmp_path)
    (tmp_path / "goccl.h").write_text(HEADER)
    page = header.header(tmp_path / "c.md", "goccl.h")
    assert page.startswith("**Model.**\nSee [`goccl_b()`](#goccl_b).\n")
    assert "- [One](#one): [`goccl_a`](#goccl_a)\n" in page
    assert (
        "### goccl_a\n\n```c\ngoccl_result goccl_a(int *n);\n```\n\n"
        "Takes `*n`, as [`goccl_b()`](#goccl_b) does:\n" in page
    )
    assert '\n\n- `"key"`: what it is,\n  in two lines\n- `"other"`: else\n' in page
    assert "\nOf `goccl_a()`.\n" in page
    assert "## Two\n\nWords of the section.\n" in page
    assert (
        "```c\ngoccl_result goccl_c(int a,\n                     int b);\n```\n\nA struct.\n"
        in page
    )


def test_each_function_of_the_header_is_on_the_page():
    headers = [(ROOT / "capi" / f"{name}.h").read_text() for name in ("goccl", "goccl_bindings")]
    declared = re.findall(r"^\w[\w ]*[ *](goccl_\w+)\(", "".join(headers), re.M)
    page = (ROOT / "docs" / "reference" / "c.md").read_text()
    shown = {
        name for heading in re.findall(r"^### (.*)", page, re.M) for name in heading.split(", ")
    }
    assert len(declared) > 60
    assert set(declared) <= shown


MODULES = ("elastic", "errors", "plan")  # with sections of their own


def test_each_name_of_goccl_numpy_is_on_its_page():
    page = (ROOT / "docs" / "reference" / "numpy.md").read_text()
    shown = set(re.findall(r"^### goccl\.numpy\.(\w+)$", page, re.M))
    assert set(goccl.numpy.__all__) == shown | {"complex32"}


def test_each_name_of_the_package_is_on_the_page():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    names = [f"goccl.{name}" for name in goccl.__all__ if name not in MODULES]
    names += [f"goccl.elastic.{name}" for name in goccl.elastic.__all__]
    shown = re.findall(r"^### (.*)", page, re.M)
    assert sorted(set(names) - set(shown)) == []


def test_docstrings_become_markdown():
    text = docstrings.text_of(
        """Does *it* for _a of a_,
        > 1 <2> [3].

        Args:
            size: of it: in
                bytes.
            **more: else.

        Returns:
            The `*result`.

        >>> f()
        1
        """
    )
    assert text == (
        "Does \\*it\\* for \\_a of a_,\n\\> 1 \\<2> \\[3].\n\n"
        "**Args:**\n\n- `size`: of it: in\n  bytes.\n- `**more`: else.\n\n"
        "**Returns:**\n\nThe `*result`.\n\n```pycon\n>>> f()\n1\n```"
    )
