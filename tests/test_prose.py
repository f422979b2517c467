"""The check of prose finds what it is for, and nothing else."""

import re

import check_prose
import pytest

WORDS = " ".join(["word"] * check_prose.WORDS)
WIDE = "x" * (check_prose.COLUMNS + 1)


@pytest.mark.parametrize(
    "text",
    [
        WORDS[:100],
        "one two\n".join(["three four"] * 10) + ".\n",
        f"| {WIDE} |",
        f"```\n{WIDE}\n```",
        f"````md\n```\n{WIDE}\n````",
        f"    # text\n\n[name]: https://{WIDE}",
        f"See [the page](https://{WIDE}) or <https://{WIDE}>.",
        f"<!-- {WIDE}\n{WIDE} -->",
        f"<!-- make pages: code x.py -->\n```\n{WIDE}\n\n{WIDE}\n<!-- end -->\nText.",
        f"---\ntitle: {WIDE}\n---\nText.",
        "- " + "\n- ".join(["an item of six words, surely"] * 20),
        "# " + "\n# ".join(["a heading"] * 50),
        "Its value is `" + "a b c " * 12 + "`.\nThe rest is short.",
        "# Begin anew\n\nIt is `told`.",
    ],
)
def test_good(text):
    assert list(check_prose.faults(text)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"One.\n{WIDE}", f"2: {check_prose.COLUMNS + 1} columns"),
        (f"```\ncode\n```\n{WIDE}", "4: "),
        (f"<!-- make pages: settings -->\n| a |\n<!-- end -->\n{WIDE}", "4: "),
        ("Short.\n\n" + WORDS.replace(" word", "\nword") + " more.", '3: "word word'),
        (
            "- item\n- " + WORDS.replace(" word", "\n  word") + " more.",
            f"2: .* has {check_prose.WORDS + 1} words",
        ),
        (("word\n" * 25) + "word: " + ("word\n" * 25), "51 words"),
        ("One.\n\nAll ranks are\nTold.", '3: "Told" is read twice'),
        ("Algorithms, some of\nwhich are fast.", '1: "of which" is read twice'),
    ],
)
def test_bad(text, fault):
    found = list(check_prose.faults(text))
    assert len(found) == 1, found
    assert re.search(fault, found[0])


def test_design_pages_may_use_any_word():
    assert list(check_prose.faults("All are told.", words_too=False)) == []
