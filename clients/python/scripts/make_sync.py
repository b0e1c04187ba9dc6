"""Writes the sync client from the async one: `python scripts/make_sync.py`, or with `--check` compares them.

The two differ only in words: `await` goes, `async with` becomes `with`, `AsyncSandbox` becomes `Sandbox`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "sandkeep"
BY_HAND = {"_platform.py", "__init__.py"}
HEADER = "# Generated from ../_async by scripts/make_sync.py. Do not edit.\n"

WORDS = [
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"AbstractAsyncContextManager", "AbstractContextManager"),
    (r"AsyncGenerator", "Generator"),
    (r"asynccontextmanager", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|read)\(", r"\1("),
    (r"\baiter_bytes\b", "iter_bytes"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bAsync([A-Z])", r"\1"),
    (r"\b_async\b", "_sync"),
    (r"One task may read", "One thread may read"),
]
IMPORT_BLOCK = re.compile(r"^from (\S+) import ([^(\n]+)$", re.MULTILINE)


def sync_text(text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return HEADER + IMPORT_BLOCK.sub(_sorted_import, text)


def _sorted_import(found: re.Match[str]) -> str:
    names = sorted(found[2].split(", "), key=_import_order)
    return f"from {found[1]} import {', '.join(names)}"


def _import_order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def wanted() -> dict[Path, str]:
    sources = sorted((PACKAGE / "_async").glob("*.py"))
    return {
        PACKAGE / "_sync" / source.name: sync_text(source.read_text())
        for source in sources
        if source.name not in BY_HAND
    }


def main(check: bool) -> int:
    files = wanted()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if not check:
        for path in stale:
            path.write_text(files[path])
        return 0
    for path in stale:
        print(f"{path} is stale: run scripts/make_sync.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
